"""Look at an installation from all sides and say what is wrong with it, and what to do; see README.md."""

from coordinator.doctor.examine import CHECKS, examine
from coordinator.doctor.report import Finding, Limits, Report, Skipped

__all__ = ["CHECKS", "Finding", "Limits", "Report", "Skipped", "examine"]
