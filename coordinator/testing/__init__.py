"""What tests need, ours and those of services that use coordinator: a server, and a fresh database for each test.

`with start_server() as server, Databases(server.dsn) as databases: dsn = databases.create()`
"""

from coordinator.testing.databases import Databases
from coordinator.testing.server import DEFAULT_IMAGE, Server, start_server

__all__ = ["DEFAULT_IMAGE", "Databases", "Server", "start_server"]
