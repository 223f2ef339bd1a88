"""How long a death costs: from SIGKILL or SIGSTOP of one of four processes to the first redelivered message.

    PYTHONPATH=. python scripts/bench/takeover.py --dsn DSN [--kill-runs 20] [--stop-runs 5] [--json]

Without --dsn it starts a server of its own. Default settings; each run has a group and processes of its own.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.processes import Process, Task  # noqa: E402 - the path is set above
from support.shell import owners, wait_until  # noqa: E402

from coordinator import Coordinator, Outgoing  # noqa: E402
from coordinator.testing.databases import Databases  # noqa: E402
from coordinator.testing.server import start_server  # noqa: E402

PARTITIONS = 16
PROCESSES = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", help="a server's superuser; databases are made on it and dropped")
    parser.add_argument("--kill-runs", type=int, default=20)
    parser.add_argument("--stop-runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dsn = arguments.dsn or stack.enter_context(start_server()).dsn
        databases = stack.enter_context(Databases(dsn))
        found = {}
        for name, number, count in (
            ("SIGKILL", signal.SIGKILL, arguments.kill_runs),
            ("SIGSTOP", signal.SIGSTOP, arguments.stop_runs),
        ):
            found[name] = [run(databases, folder, number) for _ in range(count)]
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"load average {os.getloadavg()[0]:.1f}")
        for name, took_s in found.items():
            if took_s:
                print(
                    f"{name}: first redelivered message after {statistics.median(took_s):.2f} s "
                    f"({min(took_s):.2f} to {max(took_s):.2f}), {len(took_s)} runs"
                )
    return 0


def run(databases: Databases, folder: Path, number: int) -> float:
    """One fleet, one victim; returns the seconds from the signal to the start of one of its messages elsewhere."""
    dsn = databases.create()
    try:
        with ExitStack() as stack:
            app = stack.enter_context(Coordinator(dsn))
            app.create_topic("orders", PARTITIONS)
            processes = [
                stack.enter_context(Process(Task(dsn, "orders", "ledger", str(name), work_s=0.002), folder))
                for name in range(PROCESSES)
            ]
            wait_until(lambda: {*owners(dsn, "ledger").values()} == {*map(str, range(PROCESSES))}, 60)
            # Observers judge nobody before their connections are a lease old.
            deadline_s = time.monotonic() + 12.0
            while time.monotonic() < deadline_s:
                app.publish_many("orders", [Outgoing(n, str(n)) for n in range(20)])
                time.sleep(0.2)
            app.publish_many("orders", [Outgoing(n, str(n)) for n in range(2_000)])
            victim = processes[0]
            count = len(victim.events("start"))
            wait_until(lambda: len(victim.events("start")) > count + 5, 30)
            victim.signal(number)
            signalled_at = time.time()
            mine = {partition for partition, owner in owners(dsn, "ledger").items() if owner == "0"}
            return wait_until(lambda: first_start(processes[1:], mine, signalled_at), 60) - signalled_at
    finally:
        databases.drop(dsn)


def first_start(processes: list[Process], partitions: set[int], after: float) -> float | None:
    """When a message of these partitions was first started by one of these processes."""
    at = [
        event["at"]
        for process in processes
        for event in process.events("start")
        if event["partition"] in partitions and event["at"] > after
    ]
    return min(at, default=None)


if __name__ == "__main__":
    sys.exit(main())
