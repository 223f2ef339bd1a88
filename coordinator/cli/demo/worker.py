"""One process of the demo: `python -m coordinator.cli.demo.worker NAME`; what to do comes on standard input.

The name in the arguments is for people who look at a list of processes; nothing reads it.
"""

import sys
from dataclasses import asdict, replace

from coordinator import Coordinator, Settings
from coordinator.cli.demo import consuming, publishing, tables
from coordinator.cli.demo.flights import numbered, read_flights, share_of
from coordinator.cli.demo.lifeline import receive_task, report
from coordinator.cli.demo.plan import HEARTBEAT_S, LEASE_S, MEMBERSHIP_POLL_S, PREFETCH, PUBLISHER_COUNT, SCHEMA, Task


def main() -> int:
    task = receive_task()
    with Coordinator(task.dsn, schema=SCHEMA, client_id=task.name, settings=_settings(task)) as app:
        if task.role == "publish":
            return _publish(app, task)
        with tables.connect(task.dsn) as notes:
            return (consuming.count_all if task.role == "audit" else consuming.keep_delays)(app, notes, task)


def _settings(task: Task) -> Settings:
    shorter = Settings(lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, membership_poll_s=MEMBERSHIP_POLL_S)
    return replace(shorter, prefetch=PREFETCH) if task.role == "delays" else shorter


def _publish(app: Coordinator, task: Task) -> int:
    flights = list(share_of(numbered(read_flights(), task.message_count), task.share, PUBLISHER_COUNT))
    with tables.connect(task.dsn) as connection:
        report("published", **asdict(publishing.publish_flights(app, connection, flights)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
