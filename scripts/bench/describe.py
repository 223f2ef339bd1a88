"""What looking costs on a large installation: `groups describe`, `groups list`, and one reading of the gauges for a scrape.

    PYTHONPATH=. python scripts/bench/describe.py [--dsn DSN] [--topics 100] [--partitions 16] [--groups 10]
        [--messages 10000000] [--repeat 5] [--json]

Without --dsn it starts a server of its own. Every group reads every topic, the groups stand at different places, and the first
of them has progress with holes. The commands are run as processes, start of the interpreter included; the scrape over HTTP.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.shell import wait_until  # noqa: E402 - the path is set above

from coordinator import Consumer, Coordinator  # noqa: E402
from coordinator.testing.databases import Databases  # noqa: E402
from coordinator.testing.server import start_server  # noqa: E402

BATCH = 5_000
PORT = 19187


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", help="a server's superuser; a database is made on it and dropped")
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        dsn = arguments.dsn or stack.enter_context(start_server()).dsn
        made = stack.enter_context(Databases(dsn)).create()
        began_s = time.monotonic()
        fill(made, arguments.topics, arguments.partitions, arguments.groups, arguments.messages)
        print(f"filled in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
        found = measured(made, arguments.repeat)
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"load average {os.getloadavg()[0]:.1f}")
        for name, took_s in found.items():
            print(
                f"{name}: {statistics.median(took_s):.3f} s ({min(took_s):.3f} to {max(took_s):.3f}), {len(took_s)} times"
            )
    return 0


def fill(dsn: str, topics: int, partitions: int, groups: int, messages: int) -> None:
    """Topics, messages spread over them, and groups that have come to different places."""
    names = [f"t{number:03}" for number in range(topics)]
    with Coordinator(dsn) as app, psycopg.connect(dsn, autocommit=True) as connection:
        for name in names:
            app.create_topic(name, partitions)
            left = messages // topics
            while left > 0:
                count = min(left, BATCH)
                connection.execute(
                    "select coordinator.publish_many(%s, array_fill('\\x7b7d'::bytea, array[%s]),"
                    " p_partitions => (select array_agg(n %% %s) from generate_series(1, %s) n))",
                    (name, count, partitions, count),
                )
                left -= count
        for number in range(groups):
            group = f"g{number:02}"
            with app.consumer(*names, group=group) as consumer:
                wait_until(lambda held=consumer: all_held(held, topics * partitions), 120, f"{group} holds everything")
                if number == 0:
                    # Holes: every other message stays in hand.
                    for place, message in enumerate(consumer.poll(1_000, 30)):
                        if place % 2:
                            message.ack()
                    consumer.commit()
            connection.execute(
                "select count(*) from coordinator.offsets o,"
                " lateral coordinator.seek(o.\"group\", o.topic, o.partition, 'offset', %s, p_execute => true) s"
                ' where o."group" = %s and %s > 0',
                (number * messages // (topics * partitions * groups), group, number),
            )
        connection.execute("vacuum analyze")


def all_held(consumer: Consumer, count: int) -> bool:
    runtime = consumer._runtime  # noqa: SLF001 - there is no other count of claims that costs nothing
    with runtime.lock:
        return len(runtime.engine.partitions) == count


def measured(dsn: str, repeat: int) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "coordinator.cli"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COORDINATOR_DSN": dsn}

    def ran(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run([*command, *words], check=True, capture_output=True, env=environment)

    def scraped() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=30) as answer:
            return answer.read()

    with Coordinator(dsn) as app:
        found = {
            "coordinator --version": timed(ran("--version"), repeat),
            "groups describe": timed(ran("groups", "describe", "g00"), repeat),
            "groups describe --json": timed(ran("groups", "describe", "g00", "--json"), repeat),
            "groups list": timed(ran("groups", "list"), repeat),
            "app.group_offsets()": timed(lambda: app.group_offsets("g00"), repeat),
            "app.gauges()": timed(app.gauges, repeat),
        }
    with subprocess.Popen(
        [*command, "serve", "--port", str(PORT)], env=environment, stderr=subprocess.DEVNULL
    ) as serving:
        try:
            wait_until(lambda: has_gauges(scraped), 60, "gauges")
            found["GET /metrics"] = timed(scraped, repeat)
        finally:
            serving.terminate()
    return found


def has_gauges(scraped: Callable[[], bytes]) -> bool:
    try:
        return b"coordinator_group_lag{" in scraped()
    except OSError:
        return False


def timed(work: Callable[[], object], repeat: int) -> list[float]:
    work()
    took_s = []
    for _ in range(repeat):
        began_s = time.monotonic()
        work()
        took_s.append(time.monotonic() - began_s)
    return took_s


if __name__ == "__main__":
    sys.exit(main())
