"""A real process that runs handlers on asyncio until SIGTERM.

Started as a program with the DSN, how long a handler takes, and how it takes it: "await", "thread" (no coroutine), or "stubborn"
(it ignores its cancellation once). It prints what it does, a line each.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from coordinator import AsyncCoordinator, Settings


def say(line: str) -> None:
    """Write a line in one piece: threads start together, and print writes in several."""
    os.write(1, f"{line}\n".encode())


async def main(dsn: str, work_s: float, kind: str) -> int:
    settings = Settings(
        lease_s=1.5, heartbeat_s=0.3, self_fence_margin_s=0.3, membership_poll_s=0.2, drain_timeout_s=2.0
    )
    async with AsyncCoordinator(dsn, client_id="child", settings=settings) as app:

        async def handle(message):
            say(f"start {message.value}")
            if kind == "stubborn":
                try:
                    await asyncio.sleep(work_s)
                except asyncio.CancelledError:
                    say(f"ignored {message.value}")
                    await asyncio.sleep(work_s)
            else:
                await asyncio.sleep(work_s)
            say(f"end {message.value}")

        def block(message):
            say(f"start {message.value}")
            time.sleep(work_s)
            say(f"end {message.value}")

        app.subscribe("orders", group="ledger", concurrency=4)(block if kind == "thread" else handle)
        code = await app.run()
        say(f"code {code}")
        return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3])))
