"""A PostgreSQL server of our own: find the binaries, start it, share it between processes, stop it.

Used only when asked for by name (`embedded:`); see README.md here for who starts, keeps and stops what.
POSIX only: it leans on flock, Unix sockets and signals.
"""

from coordinator.embedded.binaries import find_binaries, major_of
from coordinator.embedded.places import data_dir_of, default_data_dir
from coordinator.embedded.server import EmbeddedServer
from coordinator.embedded.shared import SharedServer, shared_server

__all__ = [
    "EmbeddedServer",
    "SharedServer",
    "data_dir_of",
    "default_data_dir",
    "find_binaries",
    "major_of",
    "shared_server",
]
