"""From the call of publish, and from its COMMIT, to the message in hand: one publishes at a steady rate, another consumes.

    python scripts/bench/latency.py [--dsn DSN] [--rate 1000] [--seconds 20] [--json]

Single publishes, a transaction each, 8 partitions, default settings. Both processes read this machine's clock. With 20 to 50
a second the system is idle in between. "After the commit" counts from publish's return; who is woken by the COMMIT may be
faster than its answer.
"""

import json
import sys
import time
from array import array

from common import Workload, fresh, head, parser

from coordinator import Coordinator
from coordinator.cli.bench import crowd
from coordinator.cli.bench.crowd import Lap
from coordinator.cli.bench.meter import Meter
from coordinator.cli.bench.stats import percentile
from coordinator.cli.bench.workload import number_of

PARTITIONS = 8
SILENCE_S = 10.0


def produce(lap: Lap, dsn: str, topic: str, count: int, rate: float) -> "tuple[array[float], array[float]]":
    """Publish at a steady rate; when each call was made, and when it returned. Who is behind goes on without a pause."""
    workload = Workload(count, 200)
    sent_s, committed_s = array("d"), array("d")
    with Coordinator(dsn) as app:
        app.publish(topic, b"0" * 200, key="warm")
        lap.start()
        started_s = time.monotonic()
        for number in range(count):
            ahead_s = started_s + number / rate - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)
            sent_s.append(time.time())
            app.publish(topic, workload.payload(number), key=workload.key(number))
            committed_s.append(time.time())
        lap.stop()
    return sent_s, committed_s


def consume(lap: Lap, dsn: str, topic: str, count: int) -> dict[int, float]:
    """Consume one by one; when each was in hand."""
    received_s: dict[int, float] = {}
    with Coordinator(dsn) as app, app.consumer(topic, group="latency", start="latest") as consumer:
        while consumer.status().partitions < PARTITIONS:
            time.sleep(0.05)
        lap.start()
        while len(received_s) < count:
            taken = consumer.poll(1, SILENCE_S)
            if not taken:
                break
            message = taken[0]
            if message.key != "warm":
                received_s.setdefault(number_of(message.payload), time.time())
            message.ack()
        lap.stop()
    return received_s


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--rate", type=float, default=1000.0)
    arguments.add_argument("--seconds", type=float, default=20.0)
    options = arguments.parse_args()
    count = int(options.rate * options.seconds)
    with fresh(options.dsn) as (dsn, connection):
        with Coordinator(dsn) as app:
            app.create_topic("latency", partitions=PARTITIONS)
        work = crowd.run(
            [(produce, (dsn, "latency", count, options.rate)), (consume, (dsn, "latency", count))], Meter(connection)
        )
    (sent_s, committed_s), received_s = work.results
    waits_ms = [1000 * (received_s[number] - sent_s[number]) for number in received_s]
    after_ms = [1000 * (received_s[number] - committed_s[number]) for number in received_s]
    facts = {
        "rate": (count - 1) / (sent_s[-1] - sent_s[0]),
        "p50_ms": percentile(waits_ms, 50),
        "p99_ms": percentile(waits_ms, 99),
        "max_ms": max(waits_ms),
        "after_commit_p50_ms": percentile(after_ms, 50),
        "after_commit_p99_ms": percentile(after_ms, 99),
        "lost": count - len(received_s),
    }
    print(json.dumps(facts) if options.json else f"{head()}; " + ", ".join(f"{k} {v:,.2f}" for k, v in facts.items()))
    return 1 if facts["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
