"""What changes of membership cost: partitions that move, that are taken by force, and seconds until all are where they belong.

    PYTHONPATH=. python scripts/bench/rebalance.py [--dsn DSN] [--runs 3] [--json]

Real processes with default settings, 64 partitions: a cold start of 8, 1 to 8, 8 to 9, and SIGKILL of 1 of 8. Seconds count on
the database's clock, from the first join (or the kill) to the last claim, so the start of interpreters is not in them as far
as they start together.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.processes import Process, Task  # noqa: E402 - the path is set above
from support.shell import query, wait_until  # noqa: E402

from coordinator import Coordinator  # noqa: E402
from coordinator.testing.databases import Databases  # noqa: E402
from coordinator.testing.server import start_server  # noqa: E402

PARTITIONS = 64
# Observers judge nobody before their connections are a lease (10 s) old.
OBSERVED_S = 12.0

WITNESS = """
create table public.moves (at timestamptz, forced boolean);
create function public.note_move() returns trigger language plpgsql as $$
begin
    insert into public.moves values (clock_timestamp(), exists (
        select from coordinator.coordinators c where c.coordinator = old.owner and c.state <> 'dead'));
    return null;
end
$$;
create trigger note_move after update on coordinator.claims
    for each row when (new.owner is not null and new.owner is distinct from old.owner) execute function public.note_move();
"""
BALANCED = """
select count(*) = {partitions} and count(distinct k.owner) = {members}
       and max(k.held) - min(k.held) <= 1
from (select c.owner, count(*) over (partition by c.owner) as held from coordinator.claims c
      join coordinator.coordinators o on o.coordinator = c.owner and o.state <> 'dead') k
"""


class Fleet:
    """Processes of one group on one database."""

    def __init__(self, stack: ExitStack, databases: Databases, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._number = 0
        self.dsn = databases.create()
        stack.callback(databases.drop, self.dsn)
        query(self.dsn, WITNESS)
        with Coordinator(self.dsn) as app:
            app.create_topic("orders", PARTITIONS)
        self.processes: list[Process] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            task = Task(self.dsn, "orders", "ledger", f"p{self._number}")
            self.processes.append(self._stack.enter_context(Process(task, self._folder)))

    def kill(self) -> None:
        self.processes.pop().kill()

    def settled(self, since: object) -> dict[str, float]:
        """Wait until everything is in its place and nothing more moves; what moved since then, and for how long."""
        text = BALANCED.format(partitions=PARTITIONS, members=len(self.processes))
        wait_until(lambda: query(self.dsn, text) == [(True,)], 180)
        count = 0
        while count != (count := query(self.dsn, "select count(*) from public.moves")[0][0]):
            time.sleep(4.0)
        ((moves, forced, took_s),) = query(
            self.dsn,
            "select count(*), count(*) filter (where forced), extract(epoch from max(at) - %s)::float "
            "from public.moves where at > %s",
            since,
            since,
        )
        return {"moves": moves, "forced": forced, "seconds": took_s}

    def now(self) -> object:
        return query(self.dsn, "select clock_timestamp()")[0][0]

    def first_join(self, since: object) -> object:
        return query(self.dsn, "select min(started_at) from coordinator.coordinators where started_at > %s", since)[0][
            0
        ]

    def step(self, count: int) -> dict[str, float]:
        since = self.now()
        self.start(count)
        wait_until(lambda: query(self.dsn, "select count(*) from coordinator.members") == [(len(self.processes),)], 120)
        return self.settled(self.first_join(since))


def run(databases: Databases, folder: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        found["cold start of 8"] = Fleet(stack, databases, folder).step(8)
    with ExitStack() as stack:
        fleet = Fleet(stack, databases, folder)
        fleet.step(1)
        found["1 to 8"] = fleet.step(7)
        found["8 to 9"] = fleet.step(1)
    with ExitStack() as stack:
        fleet = Fleet(stack, databases, folder)
        fleet.step(8)
        time.sleep(OBSERVED_S)
        since = fleet.now()
        fleet.kill()
        found["kill 1 of 8"] = fleet.settled(since)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", help="a server's superuser; databases are made on it and dropped")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dsn = arguments.dsn or stack.enter_context(start_server()).dsn
        databases = stack.enter_context(Databases(dsn))
        runs = [run(databases, folder) for _ in range(arguments.runs)]
    if arguments.json:
        print(json.dumps(runs))
        return 0
    print(f"load average {os.getloadavg()[0]:.1f}, {len(runs)} runs: median (lowest to highest)")
    for name in runs[0]:
        cells = []
        for figure in ("moves", "forced", "seconds"):
            values = [one[name][figure] for one in runs]
            cells.append(f"{figure} {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})")
        print(f"{name}: {', '.join(cells)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
