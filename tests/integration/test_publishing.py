"""Dedup keys, times and limits through both shells: what comes back, what is refused before SQL, unknown outcomes."""

import asyncio
import contextlib
import datetime as dt
import threading
import time
import uuid

import psycopg
import pytest
from support.proxy import Fault, Proxy
from support.shell import query, terminate, wait_until

from coordinator import AsyncCoordinator, Coordinator, Outgoing, Published, Scheduled, Settings
from coordinator.errors import (
    BacklogError,
    ConfigError,
    DuplicateError,
    InvalidInputError,
    MessageTooLargeError,
    NotFoundError,
    PoolExhaustedError,
    UnavailableError,
)
from coordinator.maintenance import tick

# Fixed, since it is part of the names of tests; far ahead, since a time that is past means now.
NOW = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)


class Blocking:
    """Calls of a Coordinator, each in this thread."""

    def __init__(self, dsn, **settings):
        self._app = Coordinator(dsn, settings=Settings(**settings))

    def __getattr__(self, name):
        return getattr(self._app, name)


class Aio:
    """Calls of an AsyncCoordinator, on a loop of its own."""

    def __init__(self, dsn, **settings):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._app = self._run(self._make(dsn, settings))

    async def _make(self, dsn, settings):
        return AsyncCoordinator(dsn, settings=Settings(**settings))

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def __getattr__(self, name):
        method = getattr(self._app, name)
        return lambda *arguments, **options: self._run(method(*arguments, **options))

    def close(self):
        self._run(self._app.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(params=[Blocking, Aio], ids=["blocking", "aio"])
def shell(request):
    """Makes coordinators of one kind; closes them."""
    made = []

    def make(dsn, **settings):
        made.append(request.param(dsn, **settings))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(shell, dsn):
    made = shell(dsn)
    made.create_topic("t")
    return made


@pytest.fixture
def control(dsn):
    """A connection as the control loop of a consumer has it."""
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


def payloads(dsn):
    return [bytes(row[0]) for row in query(dsn, 'select m.payload from coordinator.topic_1 m order by m."offset"')]


def count(dsn):
    return query(dsn, "select count(*) from coordinator.topic_1")[0][0]


# ---- what comes back


def test_publish__plain__is_no_duplicate(app):
    place = app.publish("t", 1)
    assert isinstance(place, Published)
    assert (place.partition, place.offset, place.duplicate) == (0, 0, False)


def test_publish__dedup_key_repeats__returns_the_firsts_place(app, dsn):
    first = app.publish("t", 1, dedup_key="k")
    assert first == Published("t", 0, 0, first.message_id)
    assert app.publish("t", 2, dedup_key="k") == first._replace(duplicate=True)
    assert count(dsn) == 1


def test_publish__dedup_key_repeats_and_asked_to_raise__raises_duplicate_error(app):
    app.publish("t", 1, dedup_key="k", on_duplicate="raise")
    with pytest.raises(DuplicateError, match="'k'") as caught:
        app.publish("t", 1, dedup_key="k", on_duplicate="raise")
    assert '"offset" : 0' in caught.value.detail


def test_publish__message_id_on_a_topic_with_a_window__is_a_dedup_key(app):
    app.create_topic("w", dedup_window_s=60)
    message_id = uuid.uuid4()
    first = app.publish("w", 1, message_id=message_id)
    assert app.publish("w", 1, message_id=str(message_id)) == first._replace(duplicate=True)
    assert app.topic("w").dedup_window_s == 60
    assert [app.publish("t", 1, message_id=message_id).offset for _ in range(2)] == [0, 1]


def test_publish__delay__returns_when_it_is_due(app, dsn):
    place = app.publish("t", 1, delay_s=60, dedup_key="k")
    assert isinstance(place, Scheduled)
    assert (place.topic, place.partition, place.offset, place.duplicate) == ("t", None, None, False)
    assert 50 < (place.due_at - dt.datetime.now(dt.UTC)).total_seconds() < 61
    assert app.publish("t", 1, dedup_key="k") == place._replace(duplicate=True)
    assert count(dsn) == 0


def test_publish__deliver_at__returns_that_time(app):
    at = dt.datetime(2100, 1, 31, 12, 0, 0, 123456, tzinfo=dt.timezone(dt.timedelta(hours=5)))
    assert app.publish("t", 1, deliver_at=at).due_at == at


def test_publish__deliver_at_has_passed__is_published(app, dsn):
    assert isinstance(app.publish("t", 1, deliver_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)), Published)
    assert count(dsn) == 1


def test_publish_many__all_kinds_in_one_batch__places_are_in_the_order_given(app):
    app.publish("t", 0, dedup_key="old")
    places = app.publish_many(
        "t",
        [
            "plain",
            Outgoing(1, dedup_key="new"),
            Outgoing(2, delay_s=60),
            Outgoing(3, dedup_key="old"),
            Outgoing(4, dedup_key="new"),
            Outgoing(5, deliver_at=NOW + dt.timedelta(hours=1), dedup_key="later"),
            Outgoing(6, dedup_key="later"),
        ],
    )
    assert [(type(place), place.offset, place.duplicate) for place in places] == [
        (Published, 1, False),
        (Published, 2, False),
        (Scheduled, None, False),
        (Published, 0, True),
        (Published, 2, True),
        (Scheduled, None, False),
        (Scheduled, None, True),
    ]
    assert places[5].due_at == places[6].due_at == NOW + dt.timedelta(hours=1)
    assert len({place.message_id for place in places}) == 5
    assert places[-1] == list(places)[-1]


@pytest.mark.parametrize(
    "payload", [b"", b"\x00\xff\xfe", b"x" * 8001, b"y" * 1_048_576, "text \U0001f600", None, {"a": [1]}]
)
def test_publish__any_payload_later_and_once__arrives_as_it_was(app, dsn, control, payload):
    app.publish("t", payload, delay_s=0.01, dedup_key="k", headers={"h": "ü"})
    app.publish("t", payload, dedup_key="l")
    wait_until(lambda: tick(control, "coordinator") and count(dsn) == 2)
    first, second = payloads(dsn)
    assert first == second
    assert payload in (first, None) or not isinstance(payload, bytes)


# ---- refused before SQL


@pytest.mark.parametrize(
    "options",
    [
        {"delay_s": -1},
        {"delay_s": float("nan")},
        {"delay_s": float("inf")},
        {"delay_s": 1e11},
        {"delay_s": "5"},
        {"delay_s": True},
        {"delay_s": 1, "deliver_at": NOW},
        {"deliver_at": dt.datetime(2100, 1, 1)},
        {"deliver_at": "2100-01-01"},
        {"deliver_at": dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5)))},
        {"dedup_key": "nul\0"},
        {"dedup_key": "\ud800"},
        {"dedup_key": "x" * 1025},
        {"dedup_key": 5},
    ],
    ids=repr,
)
def test_publish__argument_that_cannot_be_stored__is_invalid_input(app, dsn, options):
    with pytest.raises(InvalidInputError):
        app.publish("t", 1, **options)
    assert count(dsn) == 0


def test_publish__on_duplicate_unknown__is_a_config_error(app):
    with pytest.raises(ConfigError):
        app.publish("t", 1, on_duplicate="ignore")


@pytest.mark.parametrize("key", ["", "x" * 1024, "é" * 512, "'; drop --", '{"a"}', "\U0001f600"])
def test_publish__odd_dedup_keys__are_kept_as_they_are(app, key):
    assert [app.publish("t", 1, dedup_key=key).duplicate for _ in range(2)] == [False, True]


# ---- limits


@pytest.mark.direct("each session remembers the room there was for a second")
def test_publish__topic_too_far_behind__raises_backlog_error_and_nothing_is_lost(app, dsn):
    app.create_topic("limited", max_backlog=2)
    query(dsn, "select coordinator.join_group(null, 'g', array['limited'])")
    app.publish("limited", 1)
    app.publish("limited", 2)
    with pytest.raises(BacklogError, match="limited"):
        app.publish("limited", 3)
    with Coordinator(dsn) as reading, reading.consumer("limited", group="g", auto_ack=True) as consumer:
        for message in consumer:
            if message.value == 2:
                message.ack(wait=True)
                break
    assert app.publish("limited", 3).offset == 2
    assert app.topic("limited").max_backlog == 2


def test_publish__no_connection_free_in_time__raises_pool_exhausted(shell, dsn):
    app = shell(dsn, pool_size=1, pool_timeout_s=0.3)
    app.create_topic("t")
    with psycopg.connect(dsn) as blocker:
        blocker.execute("lock table coordinator.topics in access exclusive mode")
        stuck = threading.Thread(target=lambda: app.publish("t", 1))
        stuck.start()
        wait_until(lambda: query(dsn, "select 1 from pg_locks l where not l.granted"))
        with pytest.raises(PoolExhaustedError, match="pool_size"):
            app.publish("t", 2)
        blocker.rollback()
        stuck.join(10)
    app.publish("t", 3)
    assert count(dsn) == 2


def test_publish__server_does_not_answer__is_unavailable_and_not_an_exhausted_pool(shell, dsn):
    with Proxy(dsn) as proxy:
        app = shell(proxy.dsn, pool_timeout_s=0.5, connect_timeout_s=1)
        app.create_topic("t")
        proxy.refuse()
        errors = [caught(app.publish, "t", 1) for _ in range(2)]
    assert [type(error) for error in errors] == [UnavailableError] * 2


# Left alone, the pool of psycopg tries 0, 1, 3, 7 and 15 s after the first failure, and so on.
REFUSED_S, BACK_S = 7.5, 4.0


def test_publish__others_have_failed_for_a_while__goes_out_soon_after_the_server_is_back(shell, dsn):
    """After an outage of three minutes there was no connection for two minutes more."""
    with Proxy(dsn) as proxy:
        app = shell(proxy.dsn, pool_timeout_s=1.0)
        app.create_topic("t")
        proxy.refuse()
        since_s = time.monotonic()
        while time.monotonic() < since_s + REFUSED_S:
            assert isinstance(caught(app.publish, "t", 1), UnavailableError)
        proxy.heal()
        back_s = time.monotonic()
        wait_until(lambda: isinstance(caught(app.publish, "t", 1), Published), BACK_S)
        assert time.monotonic() < back_s + BACK_S


# ---- unknown outcomes (case 15)


@contextlib.contextmanager
def held_in_the_server(dsn, app):
    """A publish with a key that stands still in the server, before its commit; when the block ends it goes on."""
    with psycopg.connect(dsn, autocommit=True) as gate:
        gate.execute("select pg_advisory_lock(77)")
        gate.execute(
            "create or replace function coordinator.now_() returns timestamptz language sql volatile as "
            "$$ select pg_advisory_xact_lock_shared(77); select clock_timestamp() $$"
        )
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(caught(app.publish, "t", 1, dedup_key="k")))
        thread.start()
        wait_until(lambda: query(dsn, "select 1 from pg_locks l where not l.granted"))
        yield outcome
        gate.execute("select pg_advisory_unlock(77)")
        thread.join(20)


def caught(function, *arguments, **options):
    """What a call returns or raises."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return error


@pytest.mark.direct("ends the sessions of one client")
def test_publish__cut_after_the_commit_of_its_own_transaction__repeated_with_its_key__is_there_once(shell, dsn):
    with Proxy(dsn) as proxy:
        app = shell(proxy.dsn)
        app.create_topic("t")
        app.publish("t", 0)
        with held_in_the_server(dsn, app) as outcome:
            # The first byte of the answer leaves the server when the transaction is over.
            proxy.put(Fault(cut_after_bytes=0), "coordinator pool")
        assert isinstance(outcome[0], UnavailableError)
        assert count(dsn) == 2
        proxy.heal()
        again = app.publish("t", 1, dedup_key="k")
    assert (again.offset, again.duplicate) == (1, True)
    assert count(dsn) == 2


@pytest.mark.direct("ends the sessions of one client")
def test_publish__backend_killed_before_its_commit__repeated_with_its_key__is_published(shell, dsn):
    app = shell(dsn)
    app.create_topic("t")
    app.publish("t", 0)
    with held_in_the_server(dsn, app) as outcome:
        terminate(dsn, "coordinator pool")
        wait_until(lambda: outcome)
    assert isinstance(outcome[0], UnavailableError)
    again = app.publish("t", 1, dedup_key="k")
    assert again.duplicate is False
    assert count(dsn) == 2


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("delay_s", [None, 60])
def test_publish__commit_of_the_callers_transaction_is_cut__repeated_with_its_key__is_there_once(dsn, cut, delay_s):
    with Proxy(dsn) as proxy, Coordinator(dsn) as app:
        app.create_topic("t")
        proxy.put(Fault(cut_commit=cut), "service")
        with psycopg.connect(proxy.dsn, application_name="service") as connection:
            app.publish("t", 1, dedup_key="k", delay_s=delay_s, connection=connection)
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
        again = app.publish("t", 1, dedup_key="k", delay_s=delay_s)
    # Cut before: the server may still have been rolling back, and the second publish has waited for that.
    assert again.duplicate == (cut == "after")
    table = "topic_1" if delay_s is None else "scheduled"
    assert query(dsn, f"select count(*) from coordinator.{table}") == [(1,)]


# ---- maintenance


def test_tick__loop_of_one_process__moves_within_one_and_a_half_seconds_of_due(app, dsn, control):
    stop = threading.Event()

    def loop():
        while not stop.wait(tick(control, "coordinator")):
            pass

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        # Scheduled while the loop waits, so that it can't know.
        due = [app.publish("t", number, delay_s=0.05 + 0.3 * number).due_at for number in range(6)]
        wait_until(lambda: count(dsn) == 6)
    finally:
        stop.set()
        thread.join()
    rows = query(dsn, "select convert_from(m.payload, 'UTF8')::int, m.published_at from coordinator.topic_1 m")
    late_s = [(published_at - due[number]).total_seconds() for number, published_at in rows]
    assert min(late_s) >= 0
    assert max(late_s) < 1.5


def test_tick__what_the_database_refuses__is_logged_and_leaves_the_connection_in_order(control, caplog):
    control.execute("drop function coordinator.maintain_publishing")
    assert tick(control, "coordinator") == 5.0
    assert [record.msg for record in caplog.records] == ["maintenance.failed"]
    assert control.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_tick__connection_is_gone__raises_unavailable(control):
    control.close()
    with pytest.raises(UnavailableError):
        tick(control, "coordinator")


@pytest.mark.direct("sends a parameter with the start of the connection")
def test_tick__default_isolation_is_strict__works(dsn, app):
    app.publish("t", 1, delay_s=0.01)
    with psycopg.connect(dsn, autocommit=True, options="-c default_transaction_isolation=serializable") as connection:
        wait_until(lambda: tick(connection, "coordinator") and count(dsn) == 1)


def test_maintain__once__tells_what_it_did(dsn):
    with Coordinator(dsn) as app:
        app.create_topic("t")
        app.publish_many("t", [Outgoing(number, delay_s=0.01) for number in range(2500)])
        time.sleep(0.05)
        done = app.maintain(once=True)
    assert (done.moved, done.failed, done.expired) == (2500, 0, 0)
    assert count(dsn) == 2500


def test_maintain__server_is_away_for_a_while__goes_on_afterwards(dsn):
    with Proxy(dsn) as proxy, Coordinator(dsn) as app, Coordinator(proxy.dsn, client_id="keeper") as keeper:
        app.create_topic("t")
        thread = threading.Thread(target=keeper.maintain, kwargs={"install_signal_handlers": False})
        thread.start()
        app.publish("t", 1, delay_s=0.1)
        wait_until(lambda: count(dsn) == 1)
        proxy.refuse()
        time.sleep(0.5)
        proxy.heal()
        app.publish("t", 2, delay_s=0.1)
        wait_until(lambda: count(dsn) == 2)
        keeper.stop()
        thread.join(10)
        assert not thread.is_alive()


def test_publish__refused_in_the_callers_transaction__by_the_server_aborts_it_and_before_it_does_not(dsn):
    app = Coordinator(dsn)
    app.create_topic("small", 1, max_message_bytes=100)
    with psycopg.connect(dsn) as connection:
        app.publish("small", "a", connection=connection)
        with pytest.raises(MessageTooLargeError):
            app.publish("small", "x" * 200, connection=connection)
        # Nothing was sent: it goes on.
        with pytest.raises(NotFoundError), connection.transaction():
            app.publish("nowhere", 1, connection=connection)
    with psycopg.connect(dsn) as connection:
        app.publish("small", "lost", connection=connection)
        with pytest.raises(NotFoundError):
            app.publish("nowhere", 1, connection=connection)
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("select 1")
        connection.rollback()
    assert [message.value for message in app.peek("small")] == ["a"]
    app.close()


def test_batch__shown__names_its_first_places(app):
    app.create_topic("shown", 1)
    batch = app.publish_many("shown", range(5))
    assert repr(batch).startswith("PublishedBatch(5: Published(topic='shown', partition=0, offset=0")
    assert repr(batch).endswith(", ...)")
    assert repr(app.publish_many("shown", [])) == "PublishedBatch(0: )"


def test_client_encoding__of_the_dsn__is_not_ours(shell, dsn):
    """Sent in UTF-8 and taken for LATIN1, a key was stored as another one, in another partition; and some could not be read."""
    latin = psycopg.conninfo.make_conninfo(dsn, client_encoding="LATIN1")
    app = shell(latin)
    app.create_topic("t", partitions=16)
    keys = ["é", "🐘"]
    places = [app.publish("t", 1, key=key).partition for key in keys]
    with Coordinator(dsn) as other, Coordinator(latin) as reader, reader.consumer("t", group="g") as consumer:
        assert [other.publish("t", 1, key=key).partition for key in keys] == places
        found = []
        while len(found) < 4:
            for message in consumer.poll(4, 10):
                found.append(message.key)
                message.ack()
    assert sorted(found) == sorted(2 * keys)


def test_client_encoding__of_the_callers_connection__is_refused_where_it_is_not_utf8(dsn):
    with Coordinator(dsn) as app, psycopg.connect(dsn, client_encoding="LATIN1") as mine:
        app.create_topic("t")
        with pytest.raises(ConfigError, match="found client_encoding LATIN1, wanted UTF8"):
            app.publish("t", 1, key="é", connection=mine)
        mine.execute("set client_encoding = 'UTF8'")
        app.publish("t", 1, key="é", connection=mine)
