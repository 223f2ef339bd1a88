"""A real process behind a great many messages that all fail: what it holds does not grow with them."""

import psutil
import pytest
from support.processes import Process, Task
from support.shell import GROUP, TOPIC, query, wait_until
from support.sizes import FULL

from coordinator import Coordinator, Outgoing

COUNT = 1_000_000 if FULL else 20_000
# How many have died when it is measured: first with everything warm, and much later.
EARLY, LATE = (100_000, 400_000) if FULL else (1000, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["threads", "asyncio"] if FULL else ["threads"])
def test_every_message_fails__resident_memory_is_flat(dsn, tmp_path, shell):
    """I15, case 22: 100 % failing, a million behind it with COORDINATOR_TEST_FULL."""
    with Coordinator(dsn) as app:
        app.create_topic(TOPIC, 8)
        for start in range(0, COUNT, 5000):
            app.publish_many(TOPIC, [Outgoing(value, f"k{value % 5000}") for value in range(start, start + 5000)])
    task = Task(
        dsn,
        TOPIC,
        GROUP,
        mode="subscribe",
        shell=shell,
        raise_always=True,
        quiet=True,
        settings={"max_parked": 500},
        options={"concurrency": 4, "retry": [0.05], "max_attempts": 2, "ordering": "none"},
    )
    with Process(task, tmp_path) as process:
        resident = []
        for dead in (EARLY, LATE):
            wait_until(lambda dead=dead: dead_count(dsn) >= dead, 1800 if FULL else 120, f"{dead} are dead")
            resident.append(psutil.Process(process.pid).memory_info().rss / 1e6)
        assert process.running
    print(f"{shell}: {resident[0]:.0f} MB with {EARLY} dead, {resident[1]:.0f} MB with {LATE}, of {COUNT}")
    assert resident[1] - resident[0] < 15


def dead_count(dsn):
    """By the statistics, a second late at most: to count the rows again and again would be most of the load."""
    ((count,),) = query(
        dsn, "select n_tup_ins from pg_stat_user_tables where schemaname = 'coordinator' and relname = 'dead_letters'"
    )
    return count
