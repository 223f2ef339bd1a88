"""`coordinator bench`: what this database can do with messages, and what it could do without us; see README.md here."""

from coordinator.cli.bench.command import bench

__all__ = ["bench"]
