"""What consumers cost the server while nothing happens: processor time, and what is written.

    python scripts/bench/idle.py [--dsn DSN] [--consumers 50] [--partitions 16] [--seconds 60] [--json]

The consumers are members of groups of 10, each with connections of its own, in two processes. When the partitions have been
shared out the clock starts.
"""

import json
import sys
import time
from contextlib import ExitStack

from common import fresh, head, parser

from coordinator import Coordinator
from coordinator.cli.bench import crowd
from coordinator.cli.bench.crowd import Lap
from coordinator.cli.bench.meter import Meter

PROCESSES = 2
MEMBERS = 10
SETTLE_S = 20.0

_CHANGES = (
    "select relname, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_user_tables "
    "where schemaname = 'coordinator' and n_tup_ins + n_tup_upd + n_tup_del > 0"
)


def rest(lap: Lap, dsn: str, topic: str, numbers: list[int], seconds: float) -> None:
    """Hold these consumers and do nothing."""
    with ExitStack() as stack:
        for number in numbers:
            app = stack.enter_context(Coordinator(dsn))
            stack.enter_context(app.consumer(topic, group=f"idle-{number // MEMBERS}"))
        # Sharing out, the first heartbeats, and the server's own counters, which come a second late.
        time.sleep(SETTLE_S)
        lap.start()
        time.sleep(seconds)
        lap.stop()
        time.sleep(2.0)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--consumers", type=int, default=50)
    arguments.add_argument("--partitions", type=int, default=16)
    arguments.add_argument("--seconds", type=float, default=60.0)
    options = arguments.parse_args()
    with fresh(options.dsn) as (dsn, connection):
        with Coordinator(dsn) as app:
            app.create_topic("idle", partitions=options.partitions)
        meter = _Counting(Meter(connection), connection)
        numbers = range(options.consumers)
        work = crowd.run(
            [(rest, (dsn, "idle", list(numbers[place::PROCESSES]), options.seconds)) for place in range(PROCESSES)],
            meter,  # type: ignore[arg-type] # counts rows, too
        )
    server = None if work.server_cpu_s is None else 100 * work.server_cpu_s / work.elapsed_s
    changes = {
        name: [after - before for after, before in zip(row, meter.first.get(name, (0, 0, 0)), strict=True)]
        for name, row in meter.last.items()
        if row != meter.first.get(name)
    }
    facts = {
        "server_percent_of_a_core": server,
        "clients_percent_of_a_core": 100 * work.client_cpu_s / work.elapsed_s,
        "wal_bytes_per_s": work.wal_bytes / work.elapsed_s,
        "rows_inserted_updated_deleted": changes,
        "seconds": work.elapsed_s,
    }
    if options.json:
        print(json.dumps(facts))
        return 0
    print(f"{head()}; {options.consumers} consumers, {options.partitions} partitions, {options.seconds:g} s")
    for name, value in facts.items():
        print(f"{name}: {value}")
    return 0


class _Counting:
    """A meter that also reads which tables were written."""

    def __init__(self, meter: Meter, connection: object) -> None:
        self._meter, self._connection = meter, connection
        self.first: dict[str, tuple[int, int, int]] = {}
        self.last: dict[str, tuple[int, int, int]] = {}

    def read(self) -> object:
        self._connection.execute("select pg_stat_clear_snapshot()")  # type: ignore[attr-defined]
        rows = self._connection.execute(_CHANGES).fetchall()  # type: ignore[attr-defined]
        self.first, self.last = self.last, {name: tuple(counts) for name, *counts in rows}
        return self._meter.read()


if __name__ == "__main__":
    sys.exit(main())
