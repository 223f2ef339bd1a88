"""The promise of transactional handlers, as a whole: under SIGKILL and a restart of the server each message takes effect once."""

import time

import pytest
from support.ledger import EFFECTS, dead, effects, parked, wait_settled
from support.processes import Process, Task
from support.shell import GROUP, TOPIC, query, short, wait_until

from coordinator import Coordinator, Outgoing
from coordinator.db.schema import install
from coordinator.embedded import EmbeddedServer

COUNT = 3000
SETTINGS = {
    "lease_s": 1.5,
    "heartbeat_s": 0.3,
    "self_fence_margin_s": 0.3,
    "membership_poll_s": 0.2,
    "connect_timeout_s": 2.0,
}


@pytest.fixture
def own_server():
    """A private one, which this test may harm."""
    with EmbeddedServer.start(tcp=True) as server:
        install(server.dsn)
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 5], ids=["single", "batch"])
def test_effects__processes_killed_and_server_restarted__are_exactly_once(own_server, tmp_path, batch_size):
    """3,000 messages, three processes, a SIGKILL each second, a zombie, an immediate restart: sum and ledger are exact.

    Mutant: ack takes any epoch and any number of rows (the fence and the acks row do nothing): messages with two effects.
    """
    dsn = own_server.dsn
    query(dsn, EFFECTS)
    task = Task(
        dsn,
        TOPIC,
        GROUP,
        mode="ledger",
        work_s=0.03,
        settings=SETTINGS,
        options={"concurrency": 4, "retry": [0.2], "max_crashes": 50, "batch_size": batch_size},
    )
    with Coordinator(dsn, settings=short()) as app:
        app.create_topic(TOPIC, 6)
        app.publish_many(TOPIC, [Outgoing(value, f"k{value % 500}") for value in range(COUNT)])
        processes = [Process(task, tmp_path, f"p{number}") for number in range(3)]
        try:
            storm(dsn, own_server, processes, task, tmp_path)
            wait_settled(dsn, 60)
        finally:
            for process in processes:
                process.kill()
    found = effects(dsn)
    assert sum(value for value, _ in found) == sum(range(COUNT))
    assert found == [(value, 1) for value in range(COUNT)]
    # Each effect is of the place where its message lies: (topic, partition, offset) is unique, too.
    assert query(dsn, 'select count(*), count(distinct (partition, "offset")) from effects') == [(COUNT, COUNT)]
    assert dead(dsn) == parked(dsn) == []


def storm(dsn, server, processes, task, folder):
    """Kill one process a second and replace it, for six seconds.

    The third is frozen in its handlers before, long enough to be replaced, and thawed: it tries to commit what others have done
    meanwhile. Towards the end the server goes down without a word.
    """
    wait_until(lambda: len(processes[2].events("start")) > 20, 30, "the third has started some")
    processes[2].freeze()
    wait_until(
        lambda: query(dsn, "select 1 from coordinator.coordinators where state = 'dead'"),
        30,
        "the frozen one is declared dead",
    )
    started_s = time.monotonic()
    for round_, place in enumerate([0, 2, 1, 0, 2, 1]):
        wait_until(lambda round_=round_: time.monotonic() > started_s + round_ + 0.7)
        if round_ == 1:
            processes[2].thaw()
            time.sleep(0.3)
        if round_ == 3:
            server.restart("immediate")
        processes[place].kill()
        processes[place] = Process(task, folder, f"r{round_}")
    assert sum(count for _, count in effects(dsn)) < COUNT, "it was over before the storm was"
