"""The database that a call means, for commands that hand its DSN on to processes and drivers of their own."""

from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.cli.commands import Options
from coordinator.cli.events import show_events
from coordinator.db.dsn import conninfo
from coordinator.embedded import data_dir_of, shared_server


@contextmanager
def database(options: Options) -> Iterator[str]:
    """Yield a DSN that every process can use by itself; an embedded server is held until the end."""
    address = options.configured().dsn()
    data_dir = data_dir_of(address)
    if data_dir is None:
        yield conninfo(address)
        return
    show_events(verbose=options.verbose)
    with shared_server(data_dir) as server:
        yield server.dsn
