"""A real process that runs handlers on asyncio until SIGTERM.

Started as a program with the DSN, how long a handler takes, and how it takes it: "await", "thread" (no coroutine), or "stubborn"
(it ignores its cancellation once). It prints what it does, a line each.
"""

from __future__ import annotations

import asyncio
import sys
import time

from coordinator import AsyncCoordinator, Settings


async def main(dsn: str, work_s: float, kind: str) -> int:
    settings = Settings(
        lease_s=1.5, heartbeat_s=0.3, self_fence_margin_s=0.3, membership_poll_s=0.2, drain_timeout_s=2.0
    )
    async with AsyncCoordinator(dsn, client_id="child", settings=settings) as app:

        async def handle(message):
            print("start", message.value, flush=True)
            if kind == "stubborn":
                try:
                    await asyncio.sleep(work_s)
                except asyncio.CancelledError:
                    print("ignored", message.value, flush=True)
                    await asyncio.sleep(work_s)
            else:
                await asyncio.sleep(work_s)
            print("end", message.value, flush=True)

        def block(message):
            print("start", message.value, flush=True)
            time.sleep(work_s)
            print("end", message.value, flush=True)

        app.subscribe("orders", group="ledger", concurrency=4)(block if kind == "thread" else handle)
        code = await app.run()
        print("code", code, flush=True)
        return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3])))
