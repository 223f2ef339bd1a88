"""Metrics and health over one HTTP port; see README.md."""
