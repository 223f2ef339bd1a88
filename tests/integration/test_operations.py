"""Groups that are paused, moved and deleted under a consumer that runs, on both shells."""

import threading
import time

import psycopg
import pytest
from support.ledger import EFFECTS, effects, wait_settled
from support.proxy import Fault, Proxy
from support.shell import GROUP, TOPIC, committed, query, wait_until

from coordinator import Coordinator
from coordinator.errors import ConflictError, CoordinatorError, InvalidInputError, NotFoundError


class Seen:
    """A handler that remembers what it was given."""

    def __init__(self, gate=None):
        self.values = []
        self.gate = gate

    def __call__(self, message):
        self.values.append(message.value)
        if self.gate is not None:
            assert self.gate.wait(30)


def publish(shell, lo, hi):
    shell.app.publish_many(TOPIC, list(range(lo, hi)))


def wait_values(seen, wanted, limit_s=30):
    wait_until(lambda: sorted(set(seen.values)) == sorted(wanted), limit_s, f"{wanted}")


def quiet(seen, looks_s=0.6):
    """Several looks at the membership, and nothing new is handed over."""
    before = len(seen.values)
    time.sleep(looks_s)
    return len(seen.values) == before


# ---- behind a pooler


def test_operations__behind_a_pooler__run_in_transactions_of_their_own(make_shell, dsn):
    """A flow that begins a transaction has its statements run in that, with the limits of each."""
    shell = make_shell(pooler="transaction")
    shell.subscribe(Seen())
    publish(shell, 0, 5)
    with shell:
        wait_settled(dsn)
    operator = make_shell("operator", pooler="transaction")
    assert all(place.changed for place in operator.app.pause(GROUP, reason="stop"))
    assert all(place.changed for place in operator.app.resume(GROUP))
    with pytest.raises(NotFoundError):
        operator.app.pause("nobody")
    with pytest.raises(InvalidInputError, match="surrogate"):
        operator.app.pause("\udcff")
    assert all(place.changed for place in operator.app.pause(GROUP))
    assert operator.app.delete_group(GROUP).partitions == 2


# ---- pause


def test_pause__under_a_running_consumer__nothing_is_handed_over_until_resume(shell, dsn):
    seen = Seen()
    shell.subscribe(seen)
    publish(shell, 0, 10)
    with shell:
        wait_values(seen, range(10))
        assert all(place.changed for place in shell.app.pause(GROUP, reason="stop"))
        wait_until(lambda: all(p.paused for p in list(shell.engine.partitions.values())), 30)
        publish(shell, 10, 20)
        assert quiet(seen)
        # Not read ahead, either.
        assert all(p.hwm <= p.committed for p in shell.engine.partitions.values())
        shell.app.resume(GROUP)
        wait_values(seen, range(20))
        wait_settled(dsn)
    assert len(seen.values) == 20


def test_pause__what_runs__is_finished_and_settled(shell, dsn):
    gate = threading.Event()
    seen = Seen(gate)
    shell.subscribe(seen, ordering="none")
    publish(shell, 0, 10)
    with shell:
        wait_until(lambda: seen.values, 30)
        shell.app.pause(GROUP)
        wait_until(lambda: all(p.paused for p in list(shell.engine.partitions.values())), 30)
        started = len(seen.values)
        gate.set()
        wait_until(lambda: not any(p.in_flight or p.holds_unsaved for p in list(shell.engine.partitions.values())), 30)
        assert quiet(seen)
        assert len(seen.values) == started
        done = query(dsn, "select coalesce(sum(o.log_end_offset - o.lag), 0)::int from coordinator.offsets o")[0][0]
        assert done == started
        shell.app.resume(GROUP)
        wait_settled(dsn)
    assert sorted(seen.values) == list(range(10))


class Starts:
    """A handler that remembers when it was called last."""

    def __init__(self):
        self.count = 0
        self.last_s = 0.0

    def __call__(self, _message):
        self.last_s = time.monotonic()
        self.count += 1


def paused_by(dsn, app, starts):
    """Pause under a stream of messages; returns how long after `pause` returned the last one has started."""
    stop = threading.Event()

    def publish_on():
        with Coordinator(dsn) as publisher:
            while not stop.wait(0.01):
                publisher.publish(TOPIC, 1)

    stream = threading.Thread(target=publish_on)
    stream.start()
    try:
        wait_until(lambda: starts.count > 20, 30)
        app.pause(GROUP)
        returned_s = time.monotonic()
        wait_until(lambda: time.monotonic() - max(starts.last_s, returned_s) > 1.5, 30)
    finally:
        stop.set()
        stream.join()
    return starts.last_s - returned_s


@pytest.mark.direct("a listener needs a session")
@pytest.mark.parametrize("listen", [True, False], ids=["told", "polls"])
def test_pause__has_returned__the_last_message_starts_within_a_look(make_shell, dsn, listen):
    """The promise G18. Slack for a busy machine; a stream that is not stopped by a look goes on for the whole test."""
    shell = make_shell(listen=listen, membership_poll_s=1.0)
    starts = Starts()
    shell.subscribe(starts, ordering="none")
    with shell:
        late_s = paused_by(dsn, make_shell("operator").app, starts)
        print(f"last start {late_s:.3f} s after pause had returned")
        assert late_s < 1.0 + 3.0
        assert query(dsn, "select bool_and(o.lag > 0) from coordinator.offsets o") == [(True,)]


@pytest.mark.direct("the connection that is cut off is known by its name")
def test_pause__told_to_a_process_that_cannot_look__it_stops_with_its_lease(make_shell, dsn):
    with Proxy(dsn) as proxy:
        shell = make_shell(at=proxy.dsn, membership_poll_s=0.2, lease_s=3.0)
        starts = Starts()
        shell.subscribe(starts, ordering="none")
        with shell:
            wait_until(lambda: shell.status().partitions == 2, 30)
            proxy.put(Fault(swallow_down=True), "coordinator control")
            late_s = paused_by(dsn, make_shell("operator").app, starts)
            print(f"last start {late_s:.3f} s after pause had returned")
            assert late_s < 3.0 + 3.0
            proxy.heal()
            shell.app.resume(GROUP)


def test_pause__before_the_consumer_starts__it_starts_paused(make_shell, dsn):
    shell = make_shell()
    seen = Seen()
    shell.subscribe(seen)
    query(dsn, "select * from coordinator.join_group(null, %s, array[%s])", GROUP, TOPIC)
    publish(shell, 0, 10)
    shell.app.pause(GROUP)
    with shell:
        wait_until(lambda: shell.engine.partitions, 30)
        assert quiet(seen)
        shell.app.resume(GROUP)
        wait_values(seen, range(10))


# ---- seek


def test_seek_forced__under_a_running_consumer__everything_comes_again_from_there(shell, dsn):
    seen = Seen()
    shell.subscribe(seen)
    publish(shell, 0, 50)
    with shell:
        wait_settled(dsn)
        with pytest.raises(ConflictError, match="live members"):
            shell.app.seek(GROUP, to="earliest")
        assert sum(o.skipped for o in shell.app.seek(GROUP, to="earliest", dry_run=True)) == 0
        before = sum(committed(dsn).values())
        assert before == 50
        outcomes = shell.app.seek(GROUP, to="earliest", force=True, reason="again")
        assert {o.to_offset for o in outcomes} == {0}
        wait_until(lambda: len(seen.values) >= 100, 30)
        wait_settled(dsn)
        assert not any(o.paused for o in shell.app.group_offsets(GROUP))
    assert sorted(seen.values) == sorted([*range(50), *range(50)])


def test_seek__against_a_stream_of_transactional_handlers__comes_to_its_turn(shell, dsn):
    """FOR UPDATE alone waits for ever: acks that hold the claim's row follow each other without a pause (R9)."""
    query(dsn, EFFECTS)
    stop = threading.Event()

    def book(message, connection):
        connection.execute("insert into effects (value) values (%s)", (message.value,))
        connection.execute("select pg_sleep(0.005)")

    shell.subscribe(book, transactional=True, concurrency=8, ordering="none")
    publish(shell, 0, 2000)

    def publish_on():
        number = 2000
        while not stop.wait(0.01):
            publish(shell, number, number + 20)
            number += 20

    stream = threading.Thread(target=publish_on)
    with shell:
        wait_until(lambda: query(dsn, "select count(*) from effects")[0][0] > 50, 30)
        stream.start()
        try:
            started_s = time.monotonic()
            outcomes = shell.app.seek(GROUP, to="latest", force=True)
            took_s = time.monotonic() - started_s
        finally:
            stop.set()
            stream.join()
        assert took_s < 20
        assert all(o.to_offset == o.log_end_offset for o in outcomes)
        wait_settled(dsn, limit_s=60)
    # Each effect once, whatever the seek has cut off.
    assert max(count for _, count in effects(dsn)) == 1


@pytest.mark.parametrize(
    "arguments",
    [{}, {"to": "earliest", "by": 1}, {"to": "somewhere"}, {"to": True}, {"to": "latest", "partitions": [0]}],
)
def test_seek__arguments_that_are_no_target__are_refused(shell, arguments):
    with pytest.raises(InvalidInputError):
        shell.app.seek(GROUP, **arguments)


def test_skip__blocking_message__the_owner_goes_on_behind_it(shell, dsn):
    seen = []

    def handle(message):
        seen.append(message.value)
        if message.value == 3:
            raise RuntimeError("never")

    shell.subscribe(handle, ordering="partition", retry=[0.05], max_attempts=10_000)
    for number in range(8):
        shell.app.publish(TOPIC, number, partition=0)
    with shell:
        wait_until(lambda: seen.count(3) > 2, 30)
        look = shell.app.skip(GROUP, TOPIC, 0, 3, dry_run=True)
        assert (look.state, look.error) == ("parked", "RuntimeError: never")
        shell.app.skip(GROUP, TOPIC, 0, 3, reason="broken")
        wait_until(lambda: 7 in seen, 30)
        wait_settled(dsn)
    assert query(dsn, "select s.skipped, s.note from coordinator.skip_list s") == [(1, "broken")]


# ---- deletion, partitions


def test_delete_group_forced__its_consumer_fails_loudly(shell, dsn):
    seen = Seen()
    shell.subscribe(seen)
    publish(shell, 0, 10)
    shell.start()
    wait_values(seen, range(10))
    with pytest.raises(ConflictError):
        shell.app.delete_group(GROUP)
    shell.app.delete_group(GROUP, force=True)
    wait_until(lambda: shell.failure is not None, 30)
    with pytest.raises(CoordinatorError, match="deleted"):
        shell.stop()
    for table in ("claims", "progress", "retries", "acks", "dead_letters", "pauses", "members"):
        assert query(dsn, f"select count(*) from coordinator.{table}") == [(0,)], table
    with pytest.raises(NotFoundError):
        shell.app.seek(GROUP, to="earliest")


def test_delete_topic_forced__its_consumer_fails_loudly_and_nothing_is_left(shell, dsn):
    seen = Seen()
    shell.subscribe(seen)
    publish(shell, 0, 10)
    shell.app.publish(TOPIC, 1, delay_s=1000, dedup_key="k")
    shell.start()
    wait_values(seen, range(10))
    with pytest.raises(ConflictError, match="in use"):
        shell.app.delete_topic(TOPIC)
    shell.app.delete_topic(TOPIC, force=True)
    wait_until(lambda: shell.failure is not None, 30)
    with pytest.raises(CoordinatorError, match="deleted"):
        shell.stop()
    for table in ("topics", "segments", "claims", "progress", "scheduled", "dedup", "group_topics"):
        assert query(dsn, f"select count(*) from coordinator.{table}") == [(0,)], table
    assert query(
        dsn, "select c.relname from pg_class c where c.relnamespace = 'coordinator'::regnamespace and c.relname ~ '^topic_\\d'"
    ) == []  # fmt: skip
    with pytest.raises(NotFoundError):
        shell.app.publish(TOPIC, 1)


def test_alter_topic__partitions__names_the_call_that_adds_them(shell):
    with pytest.raises(InvalidInputError, match="add_partitions"):
        shell.app.alter_topic(TOPIC, partitions=3)


def test_delete_topic__a_transaction_that_has_published_is_open__is_refused(shell, dsn):
    """Its COMMIT would succeed, and the message be nowhere; nobody counts it before."""
    with psycopg.connect(dsn) as publisher:
        shell.app.publish(TOPIC, 1, connection=publisher)
        with pytest.raises(ConflictError, match="transactions that publish: 1"):
            shell.app.delete_topic(TOPIC)
        publisher.commit()
    shell.app.delete_topic(TOPIC)


def test_add_partitions__under_a_running_consumer__it_reads_them_from_their_first_offset(shell, dsn):
    seen = Seen()
    shell.subscribe(seen)
    publish(shell, 0, 10)
    with shell:
        wait_values(seen, range(10))
        before = shell.app.topic(TOPIC).partitions
        assert shell.app.add_partitions(TOPIC, before + 2) == 2
        assert shell.app.add_partitions(TOPIC, before + 2) == 0
        with pytest.raises(ConflictError):
            shell.app.add_partitions(TOPIC, before)
        shell.app.publish(TOPIC, 100, partition=before)
        shell.app.publish(TOPIC, 101, partition=before + 1)
        wait_values(seen, [*range(10), 100, 101])
        wait_settled(dsn)
    assert len(committed(dsn)) == before + 2


def test_alter_topic__each_setting__holds_for_what_is_published_next(shell):
    app = shell.app
    assert app.alter_topic(TOPIC, max_backlog=5, dedup_window_s=60.0) == {"max_backlog": None, "dedup_window_s": None}
    topic = app.topic(TOPIC)
    assert (topic.max_backlog, topic.dedup_window_s, topic.wake) == (5, 60.0, True)
    app.alter_topic(TOPIC, max_backlog=None, wake=False)
    topic = app.topic(TOPIC)
    assert (topic.max_backlog, topic.dedup_window_s, topic.wake) == (None, 60.0, False)
    for wrong in (
        {"max_backlog": 0},
        {"partitions": 3},
        {"wake": None},
        {"max_message_bytes": "much"},
        {"dedup_window_s": -1},
    ):
        with pytest.raises(InvalidInputError):
            app.alter_topic(TOPIC, **wrong)
    with pytest.raises(NotFoundError):
        app.alter_topic("nothing", wake=True)


def test_scheduled_message__cancelled__is_not_published_and_its_key_is_free(shell):
    app = shell.app
    app.publish(TOPIC, 1, delay_s=1000, dedup_key="k")
    (waiting,) = app.scheduled(TOPIC)
    assert app.cancel_scheduled(TOPIC, [waiting.schedule_id, 999_999]) == [waiting.schedule_id]
    assert app.scheduled() == []
    assert not app.publish(TOPIC, 2, dedup_key="k").duplicate
