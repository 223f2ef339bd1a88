"""Processes that are killed, frozen and thawed: what was in flight comes again, what was settled does not."""

import json
import time
from pathlib import Path

import pytest
from support.processes import Process, Task
from support.shell import GROUP, TOPIC, committed, drain, epochs, owners, publish, query, short, wait_until

from coordinator import Coordinator

SETTINGS = {
    "lease_s": 1.5,
    "heartbeat_s": 0.3,
    "self_fence_margin_s": 0.3,
    "membership_poll_s": 0.2,
    "rebalance_debounce_s": 0.1,
}


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="test", settings=short()) as made:
        made.create_topic(TOPIC, 4)
        yield made


@pytest.fixture
def start(dsn, tmp_path):
    """Start a process of the group; killed at the end if it still runs."""
    started = []

    def run(client_id, **task):
        process = Process(Task(dsn, TOPIC, GROUP, client_id, settings=dict(SETTINGS), **task), tmp_path)
        started.append(process.__enter__())
        return process

    yield run
    for process in started:
        process.__exit__(None, None, None)


def owned_by(dsn, client_id):
    return [partition for partition, owner in owners(dsn).items() if owner == client_id]


def test_sigkill__in_a_handler__what_was_in_flight_comes_again_and_nothing_settled_does(app, dsn, start):
    published = publish(app, 200)
    victim = start("victim", freeze_after=60)
    wait_until(lambda: victim.events("frozen"))
    settled = set(victim.places("committed"))
    (frozen,) = victim.events("frozen")
    victim.kill()
    killed_s = time.monotonic()
    with app.consumer(TOPIC, group=GROUP) as consumer:
        found = drain(consumer, 200 - len(settled))
        assert time.monotonic() - killed_s < 15
        assert consumer.poll(1, 0.3) == []
    again = [(message.partition, message.offset) for message in found]
    assert len(settled) == 60
    assert settled.isdisjoint(again)
    assert (frozen["partition"], frozen["offset"]) in again
    values = [event["value"] for event in victim.events("committed")] + [message.value for message in found]
    assert sorted(values) == published


def test_sigkill__acks_that_nobody_waited_for__only_the_unwritten_come_again(app, dsn, start):
    """A queued ack may be lost with its process; then the message comes again, and in order."""
    published = publish(app, 400)
    victim = start("victim", mode="queue", work_s=0.001)
    wait_until(lambda: len(victim.events("queued")) > 100)
    victim.kill()
    at = committed(dsn)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        found = drain(consumer, 400 - sum(at.values()))
        assert consumer.poll(1, 0.3) == []
    assert all(message.offset >= at[message.partition] for message in found)
    values = {event["value"] for event in victim.events("queued")} | {message.value for message in found}
    assert sorted(values) == published


def test_sigkill__of_one_of_three__the_others_share_its_partitions(app, dsn, start):
    publish(app, 300)
    processes = [start(name, work_s=0.005) for name in "abc"]
    wait_until(lambda: {*owners(dsn).values()} == {*"abc"})
    processes[0].kill()
    killed_s = time.monotonic()
    wait_until(lambda: {*owners(dsn).values()} == {*"bc"})
    took_s = time.monotonic() - killed_s
    print(f"taken over after {took_s:.1f} s, lease 1.5 s")
    wait_until(lambda: sum(committed(dsn).values()) == 300)
    confirmed = [place for process in processes for place in process.places("committed")]
    assert len(confirmed) == len(set(confirmed))
    before = epochs(dsn)
    time.sleep(1)
    assert epochs(dsn) == before


def test_sigkill__restarted_at_once_under_the_same_client_id__has_everything_within_a_lease(app, dsn, start):
    """Case 6."""
    published = publish(app, 100)
    first = start("same", freeze_after=30)
    wait_until(lambda: first.events("frozen"))
    first.kill()
    started_s = time.monotonic()
    second = start("same")
    wait_until(lambda: second.events("ready"), 30)
    up_s = time.monotonic()
    wait_until(lambda: sum(committed(dsn).values()) == 100)
    print(f"up after {up_s - started_s:.1f} s, everything settled {time.monotonic() - up_s:.1f} s later, lease 1.5 s")

    def confirmed():
        return [event["value"] for process in (first, second) for event in process.events("committed")]

    # It is told a moment after the commit.
    wait_until(lambda: len(confirmed()) == 100)
    assert sorted(confirmed()) == published


def test_sigkill__again_and_again__nothing_is_lost_and_nothing_confirmed_repeats(app, dsn, start):
    published = publish(app, 300)
    # Crashes are what is meant here, not what comes of being near too many of them.
    options = {"retry": [0.1], "max_crashes": 50}
    processes = []
    for round_ in range(4):
        processes.append(start(f"p{round_}", work_s=0.004, mode=("iterate", "batch")[round_ % 2], options=options))
        wait_until(lambda: processes[-1].events("ready"))
        wait_until(lambda: len(processes[-1].events("committed")) > 10 or sum(committed(dsn).values()) == 300)
        processes[-1].kill()
    with app.consumer(TOPIC, group=GROUP, **options) as consumer:
        # Lag, and not what lies above the committed offsets: what crashes have parked lies below them.
        left = sum(offset.lag for offset in app.group_offsets(GROUP))
        found = drain(consumer, left)
        assert consumer.at_end(8)
    confirmed = [place for process in processes for place in process.places("committed")]
    assert len(confirmed) == len(set(confirmed))
    again = {(message.partition, message.offset) for message in found}
    assert again.isdisjoint(confirmed)
    handled = {event["value"] for process in processes for event in process.events("start")}
    assert sorted(handled | {message.value for message in found}) == published


@pytest.mark.parametrize("mode", ["iterate", "batch"])
def test_zombie__thawed_after_a_takeover__is_refused_rejoins_and_goes_on(app, dsn, start, mode):
    """Case 5: everything of its old epochs is refused; what it does afterwards counts again."""
    publish(app, 40)
    zombie = start("zombie", mode=mode, work_s=0.1)
    wait_until(lambda: len(zombie.events("start")) >= 3)
    zombie.freeze()
    held = zombie.events("start")[-1]
    with app.consumer(TOPIC, group=GROUP) as heir:
        done = len(zombie.events("committed"))
        wait_until(lambda: len(owned_by(dsn, "test")) == 4)
        found = drain(heir, 40 - done, 5)
        heir.commit()
        zombie.thaw()
        wait_until(lambda: zombie.events("stale"))
        # As a new member, with its share.
        wait_until(lambda: len(owned_by(dsn, "zombie")) == 2)
    assert (held["partition"], held["offset"]) in {(message.partition, message.offset) for message in found}
    confirmed = set(zombie.places("committed"))
    assert confirmed.isdisjoint({(message.partition, message.offset) for message in found})
    later = publish(app, 40, start=1000)
    wait_until(lambda: {event["value"] for event in zombie.events("committed")} >= set(later))
    assert len(zombie.events("committed")) == len(set(zombie.places("committed")))


def test_zombie__thawed_before_anybody_took_over__keeps_what_it_has(app, dsn, start):
    """Its lease ran out, nobody judged it: it is its work still, and nothing is repeated."""
    publish(app, 20)
    process = start("frozen", work_s=0.05)
    wait_until(lambda: len(process.events("start")) >= 3)
    before = epochs(dsn)
    process.freeze()
    time.sleep(2.2)
    process.thaw()
    wait_until(lambda: sum(committed(dsn).values()) == 20)
    assert epochs(dsn) == before
    assert len(process.places("start")) == len(set(process.places("start")))
    assert process.events("stale") == []


def test_frozen_client__while_it_receives_rows__holds_no_lock(app, dsn, start):
    """R8: megabytes of rows are on their way to a process that is stopped; its server process waits in send, without a lock."""
    for number in range(60):
        app.publish(TOPIC, "x" * 900_000, key=str(number))
    zombie = start("zombie", work_s=0.02)
    wait_until(lambda: zombie.events("start"))
    zombie.freeze()
    started_s = time.monotonic()
    # Nobody may hold a claim's row: this would wait.
    rows = query(dsn, "select partition from coordinator.claims for update nowait")
    assert len(rows) == 4
    with app.consumer(TOPIC, group=GROUP) as heir:
        wait_until(lambda: len(owned_by(dsn, "test")) == 4)
        assert time.monotonic() - started_s < 15
        assert len(drain(heir, 60 - len(zombie.events("committed")))) > 0


def test_takeover__committed_in_an_older_segment_than_the_window__reads_both(app, dsn, start):
    published = publish(app, 30)
    victim = start("victim", freeze_after=4)
    wait_until(lambda: victim.events("frozen"))
    for round_ in range(2):
        app.rotate(TOPIC)
        published += publish(app, 30, start=100 * (round_ + 1))
    time.sleep(0.3)
    victim.kill()
    with app.consumer(TOPIC, group=GROUP) as heir:
        found = drain(heir, 86)
        assert heir.poll(1, 0.3) == []
    values = [event["value"] for event in victim.events("committed")] + [message.value for message in found]
    assert sorted(values) == published
    for partition in range(4):
        offsets = [message.offset for message in found if message.partition == partition]
        assert offsets == sorted(offsets)


def test_events__process_killed_while_it_writes__only_whole_lines_are_read(tmp_path, dsn, start):
    """The witness itself: half a line, which a kill can leave on a full disk only, is no event."""
    process = Process.__new__(Process)
    process.path = Path(tmp_path / "x.events")
    process.path.write_bytes(json.dumps({"event": "start"}).encode() + b'\n{"event": "com')
    assert process.events() == [{"event": "start"}]
