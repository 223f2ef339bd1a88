"""A process that handles `count` messages of a topic by an empty handler, on a shell, and prints the CPU seconds that it took.

python cost_child.py DSN TOPIC GROUP COUNT threads|asyncio
"""

import asyncio
import itertools
import sys
import time

from coordinator import AsyncCoordinator, Coordinator


def threads(dsn: str, topic: str, group: str, count: int) -> float:
    app = Coordinator(dsn)
    seen = itertools.count(1)

    @app.subscribe(topic, group=group)
    def handle(_message: object) -> None:
        if next(seen) == count:
            app.stop()

    began_s = time.process_time()
    app.run()
    return time.process_time() - began_s


async def tasks(dsn: str, topic: str, group: str, count: int) -> float:
    async with AsyncCoordinator(dsn) as app:
        seen = itertools.count(1)

        @app.subscribe(topic, group=group)
        async def handle(_message: object) -> None:
            if next(seen) == count:
                app.stop()

        began_s = time.process_time()
        await app.run()
        return time.process_time() - began_s


if __name__ == "__main__":
    dsn_, topic_, group_, count_, shell = sys.argv[1:]
    given = dsn_, topic_, group_, int(count_)
    print(threads(*given) if shell == "threads" else asyncio.run(tasks(*given)))
