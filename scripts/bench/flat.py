"""Does consuming stay as fast as things grow? Each case in turns with a plain one, on one server.

    python scripts/bench/flat.py [--dsn DSN] [--messages 200000] [--repeat 3] [--backlog 1000000] [--cases a,b] [--json]

A case is a topic that one member reads in batches, with an ack for every message; the plain one has 8 partitions and a backlog of
`--messages`. The others differ from it in one thing each:

    small, large       a backlog of 10,000 messages, and of --backlog
    topics             1,000 other topics in the schema
    one, sixteen, many 1, 16 and 256 partitions
    snapshot           a transaction that holds a snapshot, since before the topic was made
    held               100,000 deliveries in flight for all the time
    parked             10,000 messages that wait for their retry
"""

import json
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
from common import consume, fresh, head, holding, parser, publish, publish_apart, spread

from coordinator import Coordinator, Settings
from coordinator.cli.bench import crowd
from coordinator.cli.bench.meter import Meter

PARTITIONS = 8
HELD = 100_000
PARKED = 10_000
SMALL = 10_000
OTHER_TOPICS = 1000


@dataclass
class Found:
    """Of one case, by repeats. cpu_us: of the server, for each message; empty where that is not to be seen."""

    rate: list[float] = field(default_factory=list)
    rate_ratio: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    cpu_ratio: list[float] = field(default_factory=list)


class Bench:
    def __init__(self, dsn: str, connection: psycopg.Connection[Any], app: Coordinator, messages: int) -> None:
        self._dsn, self._connection, self._app = dsn, connection, app
        self._meter = Meter(connection)
        self._messages = messages
        self._serial = 0

    def plain(self) -> tuple[float, float | None]:
        return self.read(self._topic(PARTITIONS, self._messages))

    def case(self, name: str, backlog: int) -> tuple[float, float | None]:
        match name:
            case "small":
                # One alone takes a tenth of a second.
                found = [self.read(self._topic(PARTITIONS, SMALL)) for _ in range(5)]
                rate = statistics.median(rate for rate, _ in found)
                cpu_us = [cpu for _, cpu in found if cpu is not None]
                return rate, statistics.median(cpu_us) if cpu_us else None
            case "large":
                return self.read(self._topic(PARTITIONS, backlog))
            case "topics" | "plain":
                return self.plain()
            case "one":
                return self.read(self._topic(1, self._messages))
            case "sixteen":
                return self.read(self._topic(16, self._messages))
            case "many":
                return self.read(self._topic(256, self._messages))
            case "snapshot":
                return self._snapshot()
            case "held":
                # More of their own keys than are held: a key that is held would keep back all that comes behind it.
                return self.read(self._topic(PARTITIONS, self._messages + HELD, 2 * HELD), hold=HELD)
            case "parked":
                return self._parked()
        raise ValueError(name)

    def read(self, topic: tuple[str, int, int], *, hold: int = 0, group: str = "g") -> tuple[float, float | None]:
        """Read a topic that is there, and drop it; the rate, and the server's processor time for each message in µs."""
        name, partitions, count = topic
        settings = holding(hold)
        work = crowd.run([(consume, (self._dsn, name, group, partitions, count - hold, settings, hold))], self._meter)
        self._app.delete_group(group, force=True)
        self._app.delete_topic(name, force=True)
        cpu_us = None if work.server_cpu_s is None else 1e6 * work.server_cpu_s / (count - hold)
        return work.results[0][0], cpu_us

    def _topic(self, partitions: int, count: int, apart: int = 0) -> tuple[str, int, int]:
        self._serial += 1
        name = f"flat-{self._serial}"
        self._app.create_topic(name, partitions=partitions)
        publish_apart(self._app, name, apart)
        publish(self._app, name, count - apart)
        self._meter.settle()
        return name, partitions, count

    def _snapshot(self) -> tuple[float, float | None]:
        with psycopg.connect(self._dsn) as other:
            other.execute("set transaction isolation level repeatable read")
            other.execute("select 1 from coordinator.topics limit 1")
            # What it keeps from being cleaned shows only when there is much of it: a group of its own has come this far before.
            topic = self._topic(PARTITIONS, 2 * self._messages)
            name, partitions, count = topic
            crowd.run([(consume, (self._dsn, name, "before", partitions, count, Settings()))], self._meter)
            return self.read(topic)

    def _parked(self) -> tuple[float, float | None]:
        name, _, _ = self._topic(PARTITIONS, PARKED, PARKED)
        with self._app.consumer(name, group="g") as consumer:
            count = 0
            while count < PARKED:
                for message in consumer.poll(500, 20.0):
                    message.nack(delay_s=3600.0)
                    count += 1
            consumer.commit()
        publish(self._app, name, self._messages)
        self._meter.settle()
        return self.read((name, PARTITIONS, self._messages))


CASES = ("small", "large", "one", "sixteen", "many", "snapshot", "held", "parked", "topics")


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--messages", type=int, default=200_000, help="at least 100,000 for the case held")
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--backlog", type=int, default=1_000_000)
    arguments.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES))
    options = arguments.parse_args()
    found: dict[str, Found] = {}
    with ExitStack() as stack:
        dsn, connection = stack.enter_context(fresh(options.dsn))
        app = stack.enter_context(Coordinator(dsn))
        bench = Bench(dsn, connection, app, options.messages)
        before: list[tuple[float, float | None]] = []
        for name in options.cases:
            if name == "topics":
                # Comes last, as they stay; compared with the plain one of before.
                before = [bench.plain() for _ in range(options.repeat)]
                for number in range(OTHER_TOPICS):
                    app.create_topic(f"other-{number}", partitions=1)
            for repeat in range(options.repeat):
                if name == "topics":
                    plain, case = before[repeat], bench.case(name, options.backlog)
                elif repeat % 2 == 0:
                    plain, case = bench.plain(), bench.case(name, options.backlog)
                else:
                    case, plain = bench.case(name, options.backlog), bench.plain()
                note(found.setdefault(name, Found()), case, plain)
            print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({name: vars(one) for name, one in found.items()}))
        return 0
    print(f"{head()}; {options.messages:,} messages, a large backlog of {options.backlog:,}")
    for name, one in found.items():
        cpu = f"; server {spread(one.cpu_us, '.1f')} us, of plain {spread(one.cpu_ratio, '.2f')}" if one.cpu_us else ""
        print(f"{name}: {spread(one.rate)}/s, of plain {spread(one.rate_ratio, '.2f')}{cpu}")
    return 0


def note(found: Found, case: tuple[float, float | None], plain: tuple[float, float | None]) -> None:
    found.rate.append(case[0])
    found.rate_ratio.append(case[0] / plain[0])
    if case[1] is not None and plain[1]:
        found.cpu_us.append(case[1])
        found.cpu_ratio.append(case[1] / plain[1])


if __name__ == "__main__":
    sys.exit(main())
