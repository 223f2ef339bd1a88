"""The most memory that a consumer's process has had, with few and with many messages in flight.

    python scripts/bench/memory.py [--dsn DSN] [--held 0,1000,100000] [--payload-bytes 200] [--json]

The bound: 60 MiB, and 2 KiB for each message in flight beside its payload.
"""

import json
import sys

from common import consume, fresh, head, holding, parser, publish_apart

from coordinator import Coordinator
from coordinator.cli.bench import crowd
from coordinator.cli.bench.meter import Meter

PARTITIONS = 8
MORE = 50_000


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--held", type=lambda text: [int(word) for word in text.split(",")], default=[0, 1000, 100_000]
    )
    arguments.add_argument("--payload-bytes", type=int, default=200)
    options = arguments.parse_args()
    found = []
    with fresh(options.dsn) as (dsn, connection), Coordinator(dsn) as app:
        for held in options.held:
            topic = f"memory-{held}"
            app.create_topic(topic, partitions=PARTITIONS)
            # More than are held: a key that is held would keep back all that comes behind it.
            publish_apart(app, topic, held + MORE, options.payload_bytes)
            settings = holding(held)
            work = crowd.run([(consume, (dsn, topic, "g", PARTITIONS, MORE, settings, held))], Meter(connection))
            _, peak_kib, in_flight = work.results[0]
            # The default bound is what may be in flight beside those that are held.
            bound_kib = 60 * 1024 + (in_flight + 1000) * (2048 + options.payload_bytes) / 1024
            found.append({"held": in_flight, "peak_mib": peak_kib / 1024, "bound_mib": bound_kib / 1024})
    if options.json:
        print(json.dumps(found))
    else:
        print(head())
        for one in found:
            print(f"{one['held']:,} held: at most {one['peak_mib']:.1f} MiB, bound {one['bound_mib']:.1f} MiB")
    return 1 if any(one["peak_mib"] > one["bound_mib"] for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
