"""Single publishes, a transaction each, by 1 and by 8 producers, beside single INSERTs into a bare table.

    python scripts/bench/producers.py [--dsn DSN] [--messages 2000] [--producers 1,8] [--repeat 5] [--json]

Each producer is a process and publishes `--messages`; wake-ups are on. Ours and bare take turns at going first.
"""

import json
import sys
from contextlib import ExitStack

import psycopg
from common import Workload, fresh, head, parser, spread

from coordinator import Coordinator
from coordinator.cli.bench import crowd
from coordinator.cli.bench.bare import Bare
from coordinator.cli.bench.crowd import Lap
from coordinator.cli.bench.meter import Meter
from coordinator.cli.bench.ours import Ours

PARTITIONS = 8


def produce(lap: Lap, dsn: str, topic: str, count: int) -> float:
    """Publish one by one; the rate of this producer."""
    with Coordinator(dsn) as app:
        ours = Ours(app, PARTITIONS)
        # The pool's connection is made with the first one, and the statement prepared with the sixth.
        ours.publish_one_by_one(topic, Workload(10, 200))
        lap.start()
        rate = ours.publish_one_by_one(topic, Workload(count, 200)).rate
        lap.stop()
        return rate


def insert(lap: Lap, dsn: str, _topic: str, count: int) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        bare = Bare(connection, PARTITIONS)
        bare.publish(Workload(10, 200), batch_size=1)
        lap.start()
        rate = bare.publish(Workload(count, 200), batch_size=1).rate
        lap.stop()
        return rate


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--messages", type=int, default=2000)
    arguments.add_argument("--producers", type=lambda text: [int(word) for word in text.split(",")], default=[1, 8])
    arguments.add_argument("--repeat", type=int, default=5)
    options = arguments.parse_args()
    found: dict[int, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        dsn, connection = stack.enter_context(fresh(options.dsn))
        app = stack.enter_context(Coordinator(dsn))
        bare, meter = Bare(connection, PARTITIONS), Meter(connection)
        bare.create()
        for producers in options.producers:
            rates = found.setdefault(producers, {"ours": [], "bare": [], "ratio": []})
            for repeat in range(options.repeat):
                topic = f"single-{producers}-{repeat}"
                app.create_topic(topic, partitions=PARTITIONS)
                bare.empty()
                sides = [("ours", produce), ("bare", insert)]
                for side, function in sides if repeat % 2 == 0 else reversed(sides):
                    meter.settle()
                    work = crowd.run([(function, (dsn, topic, options.messages))] * producers, meter)
                    rates[side].append(producers * options.messages / work.elapsed_s)
                rates["ratio"].append(rates["ours"][-1] / rates["bare"][-1])
        bare.drop()
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{head()}; {options.messages:,} messages of 200 bytes each")
    for producers, rates in found.items():
        print(
            f"{producers} producers: ours {spread(rates['ours'])}/s, bare {spread(rates['bare'])}/s, "
            f"ratio {spread(rates['ratio'], '.2f')}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
