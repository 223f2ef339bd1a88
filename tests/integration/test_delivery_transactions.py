"""Acks in the handler's own transaction: effects and ack are both there or both not, whatever overruns, dies or is cut."""

import contextlib
import threading
import time

import psycopg
import pytest
from psycopg import IsolationLevel, sql
from psycopg.conninfo import conninfo_to_dict
from support.ledger import EFFECTS, Recorder, dead, effects, parked, wait_settled
from support.proxy import Fault, Proxy
from support.shell import GROUP, TOPIC, committed, locked, query, terminate, wait_until

from coordinator import Coordinator, Outgoing, Reject
from coordinator.errors import AlreadySettledError, ConfigError, FencedError, HandlerError, StaleEpochError
from coordinator.protocol import deliveries
from coordinator.protocol.statement import Statement

LEVELS = ["read committed", "repeatable read", "serializable"]


@pytest.fixture(autouse=True)
def effects_table(dsn):
    query(dsn, EFFECTS)


def book(message, connection):
    connection.execute("insert into effects (value) values (%s)", (message.value,))


def busy_until(gate, connection):
    """Wait as a handler does that works: its transaction is not idle, or the server would end it at its deadline (R12)."""
    deadline_s = time.monotonic() + 10
    while not gate.wait(0.05) and time.monotonic() < deadline_s:
        connection.execute("select 1")


def by_default(dsn, level):
    name = sql.Identifier(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(dsn, autocommit=True) as connection:
        text = sql.SQL("alter database {} set default_transaction_isolation to {}")
        connection.execute(text.format(name, sql.Literal(level)))


def test_transactional__handler_returns__effect_and_ack_are_there(shell, dsn):
    shell.subscribe(book, transactional=True, concurrency=4)
    shell.app.publish_many(TOPIC, list(range(200)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(200)]
    # The acks rows are gone: they were folded into the progress.
    assert query(dsn, "select count(*) from coordinator.acks") == [(0,)]
    assert sum(committed(dsn).values()) == 200


@pytest.mark.parametrize("level", LEVELS)
def test_transactional__handler_raises__neither_effect_nor_ack(shell, dsn, level):
    by_default(dsn, level)

    def act(message, connection):
        book(message, connection)
        if message.value % 5 == 0 and message.attempt < 3:
            raise ValueError("after the effect")

    # By default serializable, a COMMIT may be refused, which counts as a failure: as often as others are in the way.
    shell.subscribe(act, transactional=True, concurrency=4, retry=[0.1], max_attempts=100)
    shell.app.publish_many(TOPIC, list(range(50)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(50)]


def test_transactional__poison__is_a_dead_letter_without_effect(shell, dsn):
    def act(message, connection):
        book(message, connection)
        if message.value == 3:
            connection.execute("select 1 / 0")
        if message.value == 4:
            raise Reject("never")

    shell.subscribe(act, transactional=True, retry=[0.05], max_attempts=3)
    shell.app.publish_many(TOPIC, list(range(10)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(10) if value not in (3, 4)]
    assert {letter["payload"]: (letter["reason"], letter["attempts"]) for letter in dead(dsn)} == {
        "3": ("attempts", 3),
        "4": ("rejected", 1),
    }
    assert query(dsn, "select count(*) from coordinator.acks") == [(0,)]


@pytest.mark.parametrize("level", LEVELS)
def test_overrun__redelivery_commits_first__the_first_run_has_no_effect(shell, dsn, level):
    """R1, I18. Mutant: ack does not look how many rows it has inserted: two effects at READ COMMITTED."""
    by_default(dsn, level)
    gate, ended = threading.Event(), threading.Event()

    def act(message, connection):
        book(message, connection)
        if message.value == 7 and message.attempt == 1:
            busy_until(gate, connection)
            ended.set()

    shell.subscribe(act, transactional=True, concurrency=2, max_processing_s=0)
    shell.app.publish(TOPIC, 7)
    with shell:
        wait_until(lambda: effects(dsn) == [(7, 1)])
        # Folded away as far as it may be: the row must stay for as long as the first run lives.
        shell.app.publish_many(TOPIC, list(range(100, 150)))
        wait_until(lambda: len(effects(dsn)) == 51)
        gate.set()
        assert ended.wait(5)
        wait_settled(dsn)
        wait_until(lambda: query(dsn, "select count(*) from coordinator.acks") == [(0,)], 5)
    assert effects(dsn) == [(7, 1), *((value, 1) for value in range(100, 150))]
    assert dead(dsn) == parked(dsn) == []


@pytest.mark.parametrize("level", LEVELS)
def test_overrun__first_commits_while_the_second_runs__the_second_has_no_effect(shell, dsn, level):
    """R15: the message is parked when the first run commits; its row goes in that transaction, and the second is refused.

    Mutant: ack does not delete the retries row: whoever takes over delivers the message again.
    """
    by_default(dsn, level)
    first, second = threading.Event(), threading.Event()

    def act(message, connection):
        book(message, connection)
        busy_until(first if message.attempt == 1 else second, connection)

    shell.subscribe(act, transactional=True, concurrency=2, max_processing_s=0, max_attempts=9)
    shell.app.publish(TOPIC, 7)
    with shell:
        wait_until(lambda: parked(dsn) and parked(dsn)[0]["dispatched_epoch"] is not None)
        # This lets acks of handlers through, and none of the owner's exchanges, which would take the row away later.
        with locked(dsn, "select 1 from coordinator.claims for no key update"):
            first.set()
            wait_until(lambda: effects(dsn) == [(7, 1)])
            assert query(dsn, "select count(*) from coordinator.acks") == [(1,)]
            # An older snapshot does not see the row: then the acks row outranks it for whoever takes over.
            assert parked(dsn) == [] or level != "read committed"
        second.set()
        wait_settled(dsn)
        wait_until(lambda: query(dsn, "select count(*) from coordinator.acks") == [(0,)], 5)
    assert effects(dsn) == [(7, 1)]
    assert dead(dsn) == parked(dsn) == []


@pytest.mark.parametrize("first_commits", [False, True])
def test_overrun__last_attempt__dead_letter_or_effect_and_never_both(shell, dsn, first_commits):
    """R1 for dead letters: with a run alive, the dead letter takes the acks row, or finds it taken.

    Mutant: bury without its guard: an effect, and a dead letter.
    """
    gate, may_reject = threading.Event(), threading.Event()

    def act(message, connection):
        book(message, connection)
        if message.attempt == 1:
            busy_until(gate, connection)
        else:
            busy_until(may_reject, connection)
            raise Reject("second run")

    shell.subscribe(act, transactional=True, concurrency=2, max_processing_s=0, max_attempts=9)
    shell.app.publish(TOPIC, 7)
    with shell:
        wait_until(lambda: parked(dsn) and parked(dsn)[0]["dispatched_epoch"] is not None)
        if first_commits:
            gate.set()
            wait_until(lambda: effects(dsn) == [(7, 1)])
            may_reject.set()
        else:
            may_reject.set()
            wait_until(lambda: dead(dsn))
            gate.set()
        time.sleep(0.3)
        wait_settled(dsn)
    assert (effects(dsn), len(dead(dsn))) == (([(7, 1)], 0) if first_commits else ([], 1))
    assert parked(dsn) == []


def declared_dead(dsn, client_id):
    """Let its lease end, and see to it; a heartbeat may come in between, or its own look be first."""
    if query(dsn, "select 1 from coordinator.coordinators where client_id = %s and state = 'dead'", client_id):
        return True
    query(
        dsn, "update coordinator.coordinators set lease_until = now() - interval '1 s' where client_id = %s", client_id
    )
    query(dsn, "select coordinator.reap(3600)")
    return False


def test_takeover__while_a_zombie_runs__its_commit_is_refused(make_shell, dsn):
    """I6: the claim moves on under a running handler; what it did is rolled back, and the successor's effect is the only one.

    Mutant: ack without the epoch in its fence: two effects.
    """
    zombie, heir = make_shell("zombie"), make_shell("heir")
    gate = threading.Event()

    def slow(message, connection):
        book(message, connection)
        gate.wait(10)

    zombie.subscribe(slow, transactional=True)
    zombie.app.publish(TOPIC, 7, partition=0)
    zombie.start()
    wait_until(lambda: query(dsn, "select 1 from pg_stat_activity where state = 'idle in transaction'"))
    wait_until(lambda: declared_dead(dsn, "zombie"))
    heir.subscribe(book, transactional=True)
    with heir:
        # The zombie comes back as a new member, with a share; whoever has partition 0, it is another epoch.
        wait_until(lambda: effects(dsn) == [(7, 1)] or query(dsn, "select 1 from coordinator.claims where epoch > 1"))
        gate.set()
        wait_settled(dsn)
        zombie.stop()
    assert effects(dsn) == [(7, 1)]


def test_replayed__handled_in_a_transaction__has_its_effect_again(make_shell, dsn):
    """R17: the replay's number is part of the ack's key."""
    first, second = make_shell("first"), make_shell("second")

    def reject(message, connection):
        book(message, connection)
        raise Reject

    first.subscribe(reject, transactional=True)
    second.subscribe(book, transactional=True)
    for value in range(5):
        first.app.publish(TOPIC, value, partition=0)
    with first:
        wait_until(lambda: len(dead(dsn)) == 5)
        wait_settled(dsn)
    assert effects(dsn) == []
    with second:
        query(dsn, "select * from coordinator.replay(%s, %s, 0, '{0,1,2,3,4}')", GROUP, TOPIC)
        wait_until(lambda: len(effects(dsn)) == 5, 5)
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(5)]


def test_replayed_twice__dies_twice__keeps_one_row_with_its_history(make_shell, dsn):
    """R10 for transactional handlers."""
    shell = make_shell()

    def reject(message, connection):
        book(message, connection)
        raise Reject(f"replay {len(dead(dsn))}")

    shell.subscribe(reject, transactional=True)
    shell.app.publish(TOPIC, 0, partition=0)
    with shell:
        for replays in range(3):
            wait_until(lambda replays=replays: dead(dsn) and dead(dsn)[0]["replays"] == replays, 5)
            if replays < 2:
                query(dsn, "select * from coordinator.replay(%s, %s, 0, '{0}')", GROUP, TOPIC)
    assert len(dead(dsn)[0]["errors"]) == 3
    assert effects(dsn) == []


def test_idle_limit__of_a_handler__is_its_deadline_and_not_ours(make_shell, dsn):
    """R12: thinking for longer than our own five seconds, and than the visibility timeout, is allowed while it is moved on."""
    shell = make_shell(visibility_timeout_s=1.0)
    limits = []

    def act(message, connection):
        book(message, connection)
        limits.append(connection.execute("show idle_in_transaction_session_timeout").fetchone()[0])
        limits.append(connection.execute("show statement_timeout").fetchone()[0])
        time.sleep(1.5)

    shell.subscribe(act, transactional=True, max_processing_s=60)
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_settled(dsn)
    assert limits[1] == "0"
    assert effects(dsn) == [(0, 1)]


def test_idle_limit__handler_that_stopped__does_not_hold_its_locks_for_ever(make_shell, dsn):
    """R12: past its deadline the server ends its transaction, and the redelivery gets through."""
    shell = make_shell(visibility_timeout_s=1.0)
    query(dsn, "create unique index on effects (value)")
    gate = threading.Event()

    def act(message, connection):
        book(message, connection)
        if message.attempt == 1:
            gate.wait(15)

    shell.subscribe(act, transactional=True, concurrency=2, max_processing_s=0)
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_until(lambda: effects(dsn) == [(0, 1)], 8)
        gate.set()
        wait_settled(dsn)
    assert effects(dsn) == [(0, 1)]


@pytest.fixture
def proxy(dsn):
    with Proxy(dsn) as made:
        yield made


def test_publish__on_the_handlers_connection__comes_with_the_effect(shell, dsn):
    """Consume, transform, publish: all or nothing, and once."""
    shell.app.create_topic("invoices", 2)
    seen = Recorder()

    def act(message, connection):
        shell.publish_on(connection, "invoices", message.value * 10, message.key)
        book(message, connection)
        if message.attempt == 1 and message.value % 3 == 0:
            raise ValueError("after the publish")

    shell.subscribe(act, transactional=True, retry=[0.05], concurrency=4)
    shell.subscribe(seen, "invoices", group="printer")
    shell.app.publish_many(TOPIC, list(range(60)))
    with shell:
        wait_settled(dsn)
        wait_settled(dsn, group="printer")
    assert sorted(seen.values()) == [value * 10 for value in range(60)]
    assert effects(dsn) == [(value, 1) for value in range(60)]


def test_transaction__on_the_callers_connection__commits_both(shell, dsn):
    shell.app.publish_many(TOPIC, [1, 2, 3])
    with psycopg.connect(dsn, autocommit=True) as mine, shell.app.consumer(TOPIC, group=GROUP) as consumer:
        for message in taken(consumer, 3):
            with message.transaction(mine) as connection:
                assert connection is mine
                book(message, connection)
        with pytest.raises(ZeroDivisionError):
            raise_in(shell, consumer, mine)
    assert effects(dsn) == [(1, 1), (2, 1), (3, 1)]


def raise_in(shell, consumer, mine):
    shell.app.publish(TOPIC, 4)
    (message,) = taken(consumer, 1)
    with message.transaction(mine) as connection:
        book(message, connection)
        1 // 0  # noqa: B018


def test_transaction__connection_already_in_one__is_refused(shell, dsn):
    shell.app.publish(TOPIC, 1)
    with psycopg.connect(dsn) as mine, shell.app.consumer(TOPIC, group=GROUP) as consumer:
        (message,) = taken(consumer, 1)
        mine.execute("select 1")
        with pytest.raises(ConfigError), message.transaction(mine):
            pass
        mine.rollback()
        with message.transaction(mine) as connection:
            book(message, connection)
        mine.rollback()
    assert effects(dsn) == [(1, 1)]


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_transaction__strict_connection_of_the_caller__works(shell, dsn, level):
    shell.app.publish_many(TOPIC, list(range(20)))
    with psycopg.connect(dsn) as mine, shell.app.consumer(TOPIC, group=GROUP) as consumer:
        mine.isolation_level = level
        for message in taken(consumer, 20):
            with message.transaction(mine) as connection:
                book(message, connection)
    assert effects(dsn) == [(value, 1) for value in range(20)]


def test_transaction__of_a_batch__commits_all_or_nothing(shell, dsn):
    shell.app.publish_many(TOPIC, list(range(10)))
    with shell.app.consumer(TOPIC, group=GROUP) as consumer:
        messages = taken(consumer, 10)
        with pytest.raises(ZeroDivisionError):
            book_all(consumer, messages, fails=True)
        assert effects(dsn) == []
        book_all(consumer, messages)
    assert effects(dsn) == [(value, 1) for value in range(10)]
    assert sum(committed(dsn).values()) == 10


def test_transaction__one_of_the_batch_settled_before__rolls_all_back(shell, dsn):
    shell.app.publish_many(TOPIC, list(range(4)))
    with shell.app.consumer(TOPIC, group=GROUP) as consumer:
        messages = taken(consumer, 4)
        with messages[0].transaction() as connection:
            book(messages[0], connection)
        with pytest.raises((AlreadySettledError, FencedError)):
            book_all(consumer, messages)
        book_all(consumer, messages[1:])
    assert effects(dsn) == [(value, 1) for value in range(4)]


def test_transaction__begun_after_the_redelivery_was_acked__is_refused(shell, dsn):
    """R1 for who begins late: the acks row is folded away by then, and nobody else could tell that there was another run."""
    shell.app.publish(TOPIC, 1)
    with shell.app.consumer(TOPIC, group=GROUP) as consumer:
        (first,) = taken(consumer, 1)
        (second,) = taken(consumer, 1)
        assert (first.attempt, second.attempt) == (1, 2)
        book_all(consumer, [second])
        wait_until(lambda: query(dsn, "select count(*) from coordinator.acks") == [(0,)])
        for late in (first, second):
            with pytest.raises(AlreadySettledError):
                book_all(consumer, [late])
    assert effects(dsn) == [(1, 1)]


def test_transaction__of_a_replay__and_a_dead_letter_are_never_both(make_shell, dsn):
    """R1 in a second life: the guard took how often the message was replayed from a row that the run's ack had taken away.

    Both overrun their deadlines, and one exchange is to bury them. While it is at the first, the run of the second commits.
    """
    app = make_shell(visibility_timeout_s=0.4).app
    for value in (1, 2):
        app.publish(TOPIC, value, partition=0)
    with app.consumer(TOPIC, group=GROUP, max_attempts=1) as consumer:
        for former in taken(consumer, 2):
            former.reject("once")
        wait_until(lambda: len(dead(dsn)) == 2)
        query(
            dsn,
            """create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.7); return new; end $$;
               create trigger slow before insert on coordinator.dead_letters for each row execute function slow()""",
        )
        assert app.dead_letters(GROUP).replay().replayed == 2
        second = max(taken(consumer, 2), key=lambda message: message.offset)
        asleep = "select from pg_stat_activity a where a.datname = current_database() and a.wait_event = 'PgSleep'"
        with second.transaction() as connection:
            connection.execute("set local idle_in_transaction_session_timeout = 0")
            book(second, connection)
            wait_until(lambda: query(dsn, f"select exists ({asleep})") == [(True,)])
        wait_until(lambda: dead(dsn))
        wait_settled(dsn)
    assert (effects(dsn), [letter["payload"] for letter in dead(dsn)]) == ([(2, 1)], ["1"])


def test_transaction__begun_while_the_dead_letter_is_on_its_way__is_refused(make_shell, dsn):
    """No run was alive when the dead letter was sent, so it took no acks row: it was there, and the effects of the run, too."""
    app = make_shell(visibility_timeout_s=0.4).app
    app.publish(TOPIC, 1)
    with app.consumer(TOPIC, group=GROUP, retry=[0.05], max_attempts=2) as consumer:
        (first,) = taken(consumer, 1)
        (second,) = taken(consumer, 1)
        # The exchange that writes it waits for the claim's row, as it may for a slow server; the run's ack does not.
        with psycopg.connect(dsn) as slow:
            slow.execute("select from coordinator.claims c for no key update")
            second.reject("never")
            time.sleep(0.1)
            with pytest.raises(AlreadySettledError), first.transaction() as connection:
                book(first, connection)
        wait_until(lambda: dead(dsn))
    assert effects(dsn) == []


@pytest.mark.parametrize("transactional", [True, False])
def test_replayed__former_run_ends_late__says_nothing_of_the_replay(make_shell, dsn, transactional):
    """A run outlives its deadline and its message's dead letter, and ends while the replay runs, which fails.

    It was refused, and took the replay with it: no effect, no dead letter, and nobody to come.
    """
    shell = make_shell(visibility_timeout_s=1.0)
    runs, release, again = [], threading.Event(), threading.Event()

    def act(message, connection=None):
        runs.append(message.attempt)
        if len(runs) == 1:
            if connection is not None:
                book(message, connection)
                busy_until(release, connection)
            release.wait(20)
        else:
            again.set()
            time.sleep(0.6)
            raise ValueError("the replay fails")

    options = {"max_processing_s": 1.5, "max_attempts": 1, "ordering": "none", "concurrency": 2}
    shell.subscribe(act, transactional=transactional, **options)
    shell.app.publish(TOPIC, 1)
    letters = shell.app.dead_letters(GROUP)
    with shell:
        wait_until(lambda: dead(dsn))
        assert letters.replay().replayed == 1
        assert again.wait(20)
        release.set()
        wait_until(lambda: dead(dsn))
    (letter,) = dead(dsn)
    assert (effects(dsn), letter["error"], letter["replays"]) == ([], "ValueError: the replay fails", 1)


@pytest.mark.parametrize("late", ["ack", "transaction", "transaction begun before"])
@pytest.mark.parametrize("where", ["in flight", "not handed over"])
def test_replayed__late_word_of_a_former_delivery__is_of_something_settled(make_shell, dsn, late, where):
    """As long as nothing has settled the message, a late ack counts: a dead letter has."""
    app = make_shell(visibility_timeout_s=3.0).app
    app.publish(TOPIC, 1)
    letters = app.dead_letters(GROUP)
    with app.consumer(TOPIC, group=GROUP, ordering="none", max_attempts=1) as consumer:
        (former,) = taken(consumer, 1)
        with contextlib.ExitStack() as stack:
            if late == "transaction begun before":
                stack.enter_context(pytest.raises(AlreadySettledError))
                open_one = stack.enter_context(former.transaction())
                open_one.execute("set local idle_in_transaction_session_timeout = 0")
                book(former, open_one)
            wait_until(lambda: dead(dsn))
            assert letters.replay().replayed == 1
            if where == "in flight":
                (replay,) = taken(consumer, 1)
            else:
                # It is read, and waits.
                wait_until(lambda: query(dsn, "select 1 from coordinator.retries r where r.replays = 1"))
                time.sleep(1.0)
            if late == "ack":
                former.ack(wait=True)
            elif late == "transaction":
                with pytest.raises(AlreadySettledError), former.transaction() as connection:
                    book(former, connection)
        if where != "in flight":
            (replay,) = taken(consumer, 1)
        with replay.transaction() as connection:
            book(replay, connection)
        wait_settled(dsn)
    assert (effects(dsn), dead(dsn), parked(dsn)) == ([(1, 1)], [], [])


def test_transaction__of_a_plain_handler__and_a_dead_letter_are_never_both(shell, dsn):
    """R1 where the transaction is taken from the message: its run is alive, so the dead letter takes the acks row."""
    shell.app.publish(TOPIC, 1)
    with shell.app.consumer(TOPIC, group=GROUP) as consumer:
        (first,) = taken(consumer, 1)

        def overrun():
            with first.transaction() as connection:
                book(first, connection)
                # Not idle while it waits: the server would end it.
                connection.execute("set local idle_in_transaction_session_timeout = 0")
                (second,) = taken(consumer, 1)
                second.reject("second run")
                wait_until(lambda: connection.execute("select 1 from coordinator.dead_letters").fetchall())

        with pytest.raises(AlreadySettledError):
            overrun()
    assert effects(dsn) == []
    assert len(dead(dsn)) == 1


@pytest.mark.parametrize("batch_size", [1, 4])
def test_transactional__run_cut_off_behind_its_commit__is_acked_and_holds_up_nobody(shell, dsn, batch_size):
    """Nobody has told its owner: an interrupted thread, a task that is cancelled twice.

    Mutant: every later run of it is refused, and given back, for as long as the claim has this owner.
    """
    runs = []
    cut_off = []

    def act(given, connection):
        messages = given if batch_size > 1 else [given]
        runs.append([message.value for message in messages])
        for message in messages:
            book(message, connection)
        first = next((message for message in messages if message.value == 1), None)
        if first is not None and not cut_off:
            cut_off.append(first.offset)
            with psycopg.connect(dsn) as other:
                other.execute("insert into effects (value) values (1)")
                other.execute(
                    "select coordinator.ack(c.owner, c.group_id, c.topic_id, c.partition, c.epoch, array[%s::bigint], '{0}') "
                    "from coordinator.claims c where c.partition = %s",
                    (first.offset, first.partition),
                )
            raise ZeroDivisionError

    shell.subscribe(act, transactional=True, batch_size=batch_size, retry=[0.1])
    shell.app.publish_many(TOPIC, list(range(8)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(8)]
    assert sum(1 in run for run in runs) <= 3
    assert query(dsn, "select count(*) from coordinator.acks") == [(0,)]


def test_transaction__claim_lost_in_it__is_refused_and_rolled_back(shell, dsn):
    shell.app.publish(TOPIC, 1, partition=0)
    with shell.app.consumer(TOPIC, group=GROUP) as consumer:
        (message,) = taken(consumer, 1)

        def late():
            with message.transaction() as connection:
                book(message, connection)
                query(dsn, "update coordinator.claims set epoch = epoch + 1 where partition = 0")

        with pytest.raises(StaleEpochError):
            late()
    assert effects(dsn) == []


def book_all(consumer, messages, *, fails=False):
    with consumer.transaction(messages) as connection:
        for message in messages:
            book(message, connection)
        if fails:
            1 // 0  # noqa: B018


def taken(consumer, count):
    found = []
    deadline_s = time.monotonic() + 5
    while len(found) < count and time.monotonic() < deadline_s:
        found += consumer.poll(count - len(found), 0.3)
    assert len(found) == count
    return found


def test_commit__answer_lost__one_effect(proxy, make_shell, dsn):
    """R2, I17: the server has committed, and the client never hears of it. Nothing is assumed, and nothing is done twice."""
    cut_commits(proxy, make_shell, dsn, "after")


def test_commit__request_lost__one_effect(proxy, make_shell, dsn):
    """R2: the server never sees the COMMIT; the transaction is rolled back, and the message comes again."""
    cut_commits(proxy, make_shell, dsn, "before")


def test_commit__request_lost_and_its_number_given_to_another__one_effect(proxy, make_shell, dsn, monkeypatch):
    """R2: what had not reached the disk is unknown to the server after a crash, which gives its number out again.

    pg_xact_status then says "committed" of a transaction that was rolled back; believed, its effects would be lost.
    """

    def of_another(xid, history):
        return Statement("transaction_outcome", "select 'committed'", (), lambda rows: rows[0][0])

    monkeypatch.setattr(deliveries, "transaction_outcome", of_another)
    cut_commits(proxy, make_shell, dsn, "before")


def cut_commits(proxy, make_shell, dsn, moment):
    shell = make_shell(at=proxy.dsn, visibility_timeout_s=30)
    tries = []

    def act(message, connection):
        tries.append((message.value, message.attempt))
        book(message, connection)
        proxy.heal()
        if message.value < 3 and message.attempt == 1:
            proxy.put(Fault(cut_commit=moment), "coordinator handlers")

    shell.subscribe(act, transactional=True, retry=[0.1])
    for value in range(6):
        shell.app.publish(TOPIC, value, partition=0)
    with shell:
        wait_settled(dsn, 20)
    assert proxy.cuts == 3
    assert effects(dsn) == [(value, 1) for value in range(6)]
    again = [(value, 2) for value in range(3)] if moment == "before" else []
    assert sorted(tries) == sorted([*((value, 1) for value in range(6)), *again])
    assert dead(dsn) == parked(dsn) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_commit__asking_for_its_outcome_is_cut_off__effects_are_there_once(make_shell, dsn, proxy, monkeypatch, moment):
    """R1, I18: an interrupted thread, a task that is cancelled twice. Whether it has committed is found out by a new epoch.

    Mutant: the claim goes on in its epoch; the acks row may be folded while the message waits to run again.
    """
    shell = make_shell(at=proxy.dsn)
    cut_off = []

    def refuses(*_):
        cut_off.append(1)
        raise RuntimeError("cut off")

    async def arefuses(*_):
        refuses()

    monkeypatch.setattr("coordinator.consumer.transaction._committed", refuses)
    monkeypatch.setattr("coordinator.consumer.aio_transaction._committed", arefuses)

    def act(message, connection):
        book(message, connection)
        proxy.heal()
        if message.value == 1 and not cut_off:
            proxy.put(Fault(cut_commit=moment), "coordinator handlers")

    shell.subscribe(act, transactional=True, retry=[0.1])
    for value in range(4):
        shell.app.publish(TOPIC, value, partition=0)
    with shell:
        wait_settled(dsn, 30)
    assert cut_off == [1]
    assert effects(dsn) == [(value, 1) for value in range(4)]
    assert query(dsn, "select max(c.epoch) from coordinator.claims c where c.partition = 0") == [(2,)]
    assert dead(dsn) == parked(dsn) == query(dsn, "select from coordinator.acks") == []


@pytest.mark.direct("ends the sessions of one client")
def test_begin__on_a_connection_that_is_gone__is_not_charged(shell, dsn, monkeypatch):
    """Of a server that was restarted a moment ago: the handler was not called, and what it would have got is given back."""
    monkeypatch.setattr("coordinator.db.connect._TRUSTED_S", 60.0)
    record = Recorder()

    def act(message, connection):
        record(message)
        book(message, connection)

    shell.subscribe(act, transactional=True)
    with shell:
        for value in range(4):
            shell.app.publish(TOPIC, value)
            wait_until(lambda value=value: (value, 1) in effects(dsn))
            for purpose in ("work", "control", "handlers"):
                terminate(dsn, f"coordinator {purpose}")
        wait_settled(dsn, 30)
    assert [seen.attempt for seen in record.seen] == [1] * 4
    assert effects(dsn) == [(value, 1) for value in range(4)]


@pytest.mark.parametrize("what", ["nack", "reject"])
def test_transactional__given_back_and_returns__has_no_effect_and_is_charged(shell, dsn, what):
    """`except ...: message.nack(); return` is what people write: its effects were there as often as it was tried."""

    def act(message, connection):
        book(message, connection)
        if message.value == 3:
            message.nack() if what == "nack" else message.reject("never")

    shell.subscribe(act, transactional=True, retry=[0.05], max_attempts=3)
    shell.app.publish_many(TOPIC, list(range(10)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(10) if value != 3]
    (letter,) = dead(dsn)
    assert (letter["payload"], letter["attempts"]) == ("3", 3 if what == "nack" else 1)


@pytest.mark.parametrize("second", ["none", "in flight", "nack", "ack"])
@pytest.mark.parametrize("what", ["nack", "reject"])
def test_transaction__given_back_past_its_deadline__is_rolled_back(shell, dsn, what, second):
    """The late no was ignored, and the end of the block taken for a late ack: its effects were there, and the message done."""
    shell.app.publish(TOPIC, 1)
    with shell.app.consumer(TOPIC, group=GROUP, retry=[0.05]) as consumer:
        (first,) = taken(consumer, 1)
        others = []

        def overrun():
            with first.transaction() as connection:
                book(first, connection)
                first.extend(0.1)
                connection.execute("set local idle_in_transaction_session_timeout = 0")
                if second == "none":
                    time.sleep(0.3)
                else:
                    others.extend(taken(consumer, 1))
                    if second != "in flight":
                        getattr(others[0], second)()
                first.nack() if what == "nack" else first.reject("never")

        with pytest.raises(AlreadySettledError):
            overrun()
        assert effects(dsn) == []
        if second in ("none", "nack"):
            others.extend(taken(consumer, 1))
        others[-1].ack(wait=True)
        wait_settled(dsn)
    assert (effects(dsn), dead(dsn)) == ([], [])


@pytest.mark.parametrize("what", ["nack", "reject"])
def test_transactional__given_back_past_its_deadline__has_no_effect(make_shell, dsn, what):
    shell = make_shell(visibility_timeout_s=1.0)
    again = threading.Event()

    def act(message, connection):
        if message.attempt > 1:
            again.set()
            return
        book(message, connection)
        busy_until(again, connection)
        message.nack() if what == "nack" else message.reject("never")

    shell.subscribe(act, transactional=True, concurrency=2, max_processing_s=1.0)
    shell.app.publish(TOPIC, 1)
    with shell:
        wait_settled(dsn)
        assert again.wait(20)
    assert (effects(dsn), dead(dsn)) == ([], [])


@pytest.mark.parametrize("what", ["nack", "reject", "ack", "extend"])
def test_transactional__answered_while_its_commit_is_under_way__the_commit_wins(shell, dsn, what):
    """By a thread that the handler has left behind: the effects are there already, so once more or a dead letter is wrong."""
    query(
        dsn,
        """create function slow() returns trigger language plpgsql as
               $$ begin perform pg_sleep(0.6); return null; end $$;
           create constraint trigger slow after insert on effects deferrable initially deferred
               for each row when (new.value = 3) execute function slow()""",
    )
    answered = []

    def answer(message):
        wait_until(
            lambda: (
                query(
                    dsn,
                    "select count(*) from pg_stat_activity a where a.datname = current_database() and a.wait_event = 'PgSleep'",
                )
                == [(1,)]
            )
        )
        {
            "nack": lambda: message.nack(delay_s=0),
            "reject": message.reject,
            "ack": message.ack,
            "extend": lambda: message.extend(60),
        }[what]()
        answered.append(what)

    def act(message, connection):
        book(message, connection)
        if message.value == 3:
            threading.Thread(target=answer, args=(message,)).start()

    shell.subscribe(act, transactional=True, max_attempts=2)
    shell.app.publish_many(TOPIC, list(range(6)))
    with shell:
        wait_settled(dsn)
        wait_until(lambda: answered == [what])
        shell.app.publish(TOPIC, 6)
        wait_until(lambda: (6, 1) in effects(dsn))
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(7)]
    assert dead(dsn) == parked(dsn) == query(dsn, "select from coordinator.acks") == []


@pytest.mark.parametrize("pause_s", [0, 0.3])
def test_transactional__acked_and_returns__effect_and_ack_are_there(shell, dsn, pause_s):
    """With a pause, the ack was written by an exchange: the transaction was refused, and its effects were lost."""

    def act(message, connection):
        book(message, connection)
        message.ack()
        time.sleep(pause_s)

    shell.subscribe(act, transactional=True, concurrency=4)
    shell.app.publish_many(TOPIC, list(range(10)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(10)]


@pytest.mark.parametrize("pause_s", [0, 0.3])
@pytest.mark.parametrize("how", ["raises", "rolls back", "waits"])
def test_transactional__acked_and_fails__neither_effect_nor_ack(shell, dsn, how, pause_s):
    """The ack stayed, without its effects (G15)."""

    def act(message, connection):
        book(message, connection)
        if message.attempt > 1:
            return
        message.ack(wait=how == "waits")
        time.sleep(pause_s)
        if how == "rolls back":
            raise psycopg.Rollback
        raise ValueError("after the ack")

    shell.subscribe(act, transactional=True, concurrency=4, retry=[0.05])
    shell.app.publish_many(TOPIC, list(range(4)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(4)]


def test_transaction__rolled_back_before_its_ack__acked_by_itself(shell, dsn):
    """The block is over: what is said then counts."""
    shell.app.publish(TOPIC, 1)
    with shell.app.consumer(TOPIC, group=GROUP) as consumer:
        (message,) = consumer.poll(max_messages=1, timeout_s=10)
        with contextlib.suppress(ValueError), message.transaction() as connection:
            book(message, connection)
            with pytest.raises(HandlerError, match="acked by the end of its transaction"):
                message.ack(wait=True)
            raise ValueError("not this time")
        message.ack(wait=True)
    assert (effects(dsn), sum(committed(dsn).values())) == ([], 1)


def test_transactional_batch__tells_of_failures__they_have_no_effect_and_the_rest_is_not_charged(shell, dsn):
    """All was acked, whatever it said."""
    attempts, batches = {}, []

    def act(messages, connection):
        for message in messages:
            book(message, connection)
            attempts[message.value] = message.attempt
        batches.append([message.value for message in messages])
        return {
            message: ValueError("odd") if message.value in (3, 4) else None
            for message in messages
            if message.value != 5
        }

    shell.subscribe(act, transactional=True, batch_size=10, retry=[0.05], max_attempts=2)
    shell.app.publish_many(TOPIC, list(range(10)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(10) if value not in (3, 4, 5)]
    assert sorted((letter["payload"], letter["attempts"]) for letter in dead(dsn)) == [("3", 2), ("4", 2), ("5", 2)]
    assert {attempts[value] for value in (0, 1, 2, 6, 7, 8, 9)} == {1}
    assert all(batch == sorted(batch) for batch in batches)


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_transactional_batch__one_of_each_fails__nothing_else_of_its_partition_waits(shell, dsn, ordering):
    """What was rolled back for a neighbour was given back as after an outage: its partition stood still for a second each time."""

    def act(messages, connection):
        for message in messages:
            book(message, connection)
        return {
            message: ValueError("odd") if message.value % 8 == 0 and message.attempt == 1 else None
            for message in messages
        }

    shell.subscribe(act, transactional=True, batch_size=8, ordering=ordering, retry=[0.05])
    shell.app.publish_many(TOPIC, [Outgoing(value, partition=0) for value in range(160)])
    begun_s = time.monotonic()
    with shell:
        wait_settled(dsn)
    # Twenty batches that fail: twenty seconds it was.
    assert time.monotonic() - begun_s < 8
    assert effects(dsn) == [(value, 1) for value in range(160)]
    assert dead(dsn) == []


@pytest.mark.direct("behind a pooler a session can't be set up")
def test_transactional__database_with_limits_of_its_own__handlers_have_none_but_their_deadline(shell, dsn):
    """Publishing and plain handlers went on, and these failed until their messages were dead letters."""
    name = sql.Identifier(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(dsn, autocommit=True) as connection:
        for setting in ("statement_timeout to '200ms'", "default_transaction_read_only to on"):
            connection.execute(sql.SQL("alter database {} set ").format(name) + sql.SQL(setting))
    shell.app.publish(TOPIC, 1)

    def act(message, connection):
        connection.execute("select pg_sleep(0.4)")
        book(message, connection)

    shell.subscribe(act, transactional=True, max_attempts=1)
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(1, 1)]


@pytest.mark.parametrize("statement", ["rollback", "rollback and chain", "rollback; begin"])
def test_transactional__handler_rolls_back_by_a_statement__is_a_failure(shell, dsn, statement):
    """It was acked, and its effect was gone."""

    def act(message, connection):
        book(message, connection)
        if message.value == 3:
            connection.execute(statement)

    shell.subscribe(act, transactional=True, max_attempts=1)
    shell.app.publish_many(TOPIC, list(range(5)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(5) if value != 3]
    (letter,) = dead(dsn)
    assert "has ended its transaction" in letter["error"]


@pytest.mark.parametrize("statement", ["commit", "commit and chain", "commit; begin"])
def test_transactional__handler_commits_by_a_statement__is_a_failure(shell, dsn, statement):
    """What is committed can't be undone; but it is not passed over in silence, and nothing behind it counts."""

    def act(message, connection):
        connection.execute(statement)
        if statement != "commit":
            book(message, connection)

    shell.subscribe(act, transactional=True, max_attempts=1)
    shell.app.publish_many(TOPIC, list(range(2)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == []
    assert all("has ended its transaction" in letter["error"] for letter in dead(dsn))
    assert len(dead(dsn)) == 2


@pytest.mark.parametrize(
    "left_open", ["copy (select 1) to stdout", "copy effects from stdin", "select generate_series(1, 100000)"]
)
def test_transactional__handler_leaves_a_command_open__is_a_failure_and_the_next_has_a_connection_in_order(
    shell, dsn, left_open
):
    """What Cursor.copy and Cursor.stream are between two rows. Mutant: the ack waits for its end, and the handler's thread with it."""

    def act(message, connection):
        book(message, connection)
        if message.value == 3:
            connection.pgconn.send_query(left_open.encode())

    shell.subscribe(act, transactional=True, max_attempts=1)
    shell.app.publish_many(TOPIC, list(range(6)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(6) if value != 3]
    (letter,) = dead(dsn)
    assert "COPY" in letter["error"]


def test_transactional__cursor_leaves_its_stream_suspended__is_a_failure(dsn):
    """A suspended one holds psycopg's lock of the connection, so nothing may wait for that."""
    kept = []

    def read_one(message):
        with message.transaction() as connection:
            kept.append(connection.cursor().stream("select generate_series(1, 100000)"))
            next(kept[0])

    with Coordinator(dsn) as app:
        app.create_topic(TOPIC, 1)
        app.publish(TOPIC, 1)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            (message,) = consumer.poll(timeout_s=10)
            with pytest.raises(HandlerError, match="stream"):
                read_one(message)


def test_transactional__handler_leaves_a_pipeline_open__is_a_failure_and_the_next_has_a_connection_in_order(shell, dsn):
    """In a pipeline the COMMIT would only be sent, and what became of it not be known when the message counts as acked."""

    def act(message, connection):
        if message.value == 3:
            left.append(connection.pipeline())
            # Of a handler of either shell: what enters a pipeline of asyncio's is a coroutine that never waits.
            entering = left[-1].__enter__() if hasattr(left[-1], "__enter__") else left[-1].__aenter__()
            if hasattr(entering, "send"):
                with contextlib.suppress(StopIteration):
                    entering.send(None)
        book(message, connection)

    left = []
    shell.subscribe(act, transactional=True, max_attempts=1)
    shell.app.publish_many(TOPIC, list(range(6)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(6) if value != 3]
    (letter,) = dead(dsn)
    assert "pipeline" in letter["error"]
