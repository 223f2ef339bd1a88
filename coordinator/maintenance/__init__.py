"""Tasks that any process may run, one at a time; see README.md."""

from coordinator.maintenance.publishing import tick

__all__ = ["tick"]
