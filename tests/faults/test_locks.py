"""Other people's locks, other people's defaults, and acks of claims that are gone."""

import time

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from support.shell import (
    GROUP,
    TOPIC,
    Reading,
    committed,
    drain,
    epochs,
    locked,
    owners,
    publish,
    query,
    short,
    terminate,
    wait_until,
)

from coordinator import Coordinator
from coordinator.errors import StaleEpochError

ONE_CLAIM = "select 1 from coordinator.claims c where c.partition = 0 for update"


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="test", settings=short()) as made:
        made.create_topic(TOPIC, 4)
        yield made


@pytest.fixture
def consumer(app):
    with app.consumer(TOPIC, group=GROUP) as made:
        assert made.at_end(5)
        yield made


def test_claim_row_locked__other_partitions_go_on_and_it_follows(app, dsn, consumer):
    """R8: one locked claim never fails the exchange of the others."""
    with locked(dsn, ONE_CLAIM):
        for partition in range(4):
            publish(app, 10, partition=partition)
        started_s = time.monotonic()
        found = drain(consumer, 30)
        consumer.commit()
        assert time.monotonic() - started_s < 2
        assert {message.partition for message in found} == {1, 2, 3}
    assert [message.offset for message in drain(consumer, 10)] == list(range(10))


def test_claim_row_locked__ack_that_waits__returns_when_it_is_free(app, dsn, consumer):
    publish(app, 1, partition=0)
    (message,) = consumer.poll(1, 5)
    with locked(dsn, ONE_CLAIM):
        message.ack()
        time.sleep(0.5)
        assert committed(dsn)[0] == 0
    consumer.commit()
    assert committed(dsn)[0] == 1


def test_claim_row_locked__exchanges_back_off(app, dsn, consumer):
    with locked(dsn, ONE_CLAIM):
        publish(app, 10, partition=0)
        time.sleep(0.2)
        before, cpu_s = consumer._runtime.engine.exchange_count, time.process_time()
        time.sleep(1.5)
        count = consumer._runtime.engine.exchange_count - before
        print(f"{count} exchanges in 1.5 s against a locked claim, {time.process_time() - cpu_s:.2f} s CPU")
        assert count < 300


@pytest.mark.direct("ends the sessions of one client")
def test_claim_row_locked__after_a_reconnect_other_partitions_go_on(app, dsn, consumer):
    with locked(dsn, ONE_CLAIM):
        assert terminate(dsn, "coordinator work") == 1
        publish(app, 10, partition=1)
        assert len(drain(consumer, 10, 5)) == 10


def test_rejoin__join_fails_once__is_a_member_in_the_end(app, dsn, consumer):
    """The ghost owner of case 10: fenced, registered anew, and the join ran into a lock."""
    publish(app, 1)
    with locked(dsn, "select 1 from coordinator.groups for update"):
        query(dsn, "update coordinator.coordinators set state = 'dead'")
        time.sleep(3.5)
    # What reap would have done.
    query(
        dsn,
        "delete from coordinator.members m using coordinator.coordinators c where c.coordinator = m.coordinator and c.state = 'dead'",
    )
    wait_until(
        lambda: set(owners(dsn).values()) == {"test"} and len(query(dsn, "select 1 from coordinator.members")) == 1, 6
    )
    assert len(drain(consumer, 1, 3)) == 1


def test_member__declared_dead__rejoins_under_a_new_id_and_goes_on(app, dsn, consumer):
    """Case 10, each time: none is left as a ghost that lives and owns nothing."""
    for round_ in range(4):
        before = consumer.member_id
        # Between the two a heartbeat may renew the lease.
        wait_until(
            lambda: (
                query(
                    dsn,
                    "update coordinator.coordinators set lease_until = now() - interval '1 s' where state = 'alive'",
                ),
                query(dsn, "select count(*) from coordinator.reap(3600)") == [(1,)],
            )[1]
        )
        wait_until(lambda before=before: consumer.member_id != before)
        publish(app, 4, start=round_ * 4)
        assert len(drain(consumer, 4, 6)) == 4
        # Else the next death may come before the acks are written: they are lost then, which is told, and the messages come again.
        consumer.commit()
    assert sum(committed(dsn).values()) == 16
    assert set(owners(dsn).values()) == {"test"}


def test_ack__claim_taken_meanwhile__is_refused_told_and_counted(app, dsn, consumer):
    publish(app, 2, partition=0)
    (message,) = consumer.poll(1, 5)
    query(dsn, "update coordinator.claims set epoch = epoch + 1 where partition = 0")
    with pytest.raises(StaleEpochError):
        message.ack(wait=True)
    # Told again, however often it is tried; and counted.
    with pytest.raises(StaleEpochError):
        message.ack()
    assert consumer._runtime.engine.stale_count >= 1
    assert committed(dsn)[0] == 0
    (again,) = consumer.poll(1, 5)
    assert (again.offset, again.epoch > message.epoch) == (0, True)


def test_commit__acks_lost_before__raises_stale_epoch(app, dsn, consumer):
    """Nobody else tells: an ack that does not wait is refused after it has returned."""
    publish(app, 2, partition=0)
    (message,) = consumer.poll(1, 5)
    # The second message may be on its way: its exchange, answered first, would tell the ack.
    with consumer._runtime.lock:
        query(dsn, "update coordinator.claims set epoch = epoch + 1 where partition = 0")
        message.ack()
    wait_until(lambda: message.delivery.owner.lost)
    with pytest.raises(StaleEpochError):
        consumer.commit()


def test_claim_lost__other_partitions_keep_their_acks(app, dsn, consumer):
    """Case 9: while one partition is lost, acks of the others succeed, in the same exchange."""
    for partition in (0, 1):
        publish(app, 1, partition=partition)
    found = [consumer.poll(1, 5)[0] for _ in range(2)]
    query(dsn, "update coordinator.claims set epoch = epoch + 1 where partition = 0")
    refused = []
    for message in found:
        try:
            message.ack(wait=True)
        except StaleEpochError:
            refused.append(message.partition)
    assert refused == [0]
    assert committed(dsn)[1] == 1


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_default_isolation__stricter__no_exchange_fails(app, dsn, caplog, level):
    strictly(dsn, level)
    with (
        Coordinator(dsn, client_id="strict", settings=short()) as strict,
        psycopg.connect(dsn) as connection,
        strict.consumer(TOPIC, group=GROUP) as consumer,
    ):
        # A gap to be looked at while more is fetched.
        strict.publish(TOPIC, "open", partition=0, connection=connection)
        for number in range(30):
            strict.publish(TOPIC, number, partition=1)
            drain(consumer, 1)
        connection.commit()
        assert len(drain(consumer, 1)) == 1
    assert [record.error for record in caplog.records if record.msg == "exchange.failed"] == []


def strictly(dsn, level):
    """Make a stricter level the default of the database."""
    name = sql.Identifier(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(dsn, autocommit=True) as connection:
        text = "alter database {} set default_transaction_isolation to {}"
        connection.execute(sql.SQL(text).format(name, sql.Literal(level)))


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_default_isolation__stricter__everything_works(app, dsn, level):
    """Case 19."""
    strictly(dsn, level)
    other = Coordinator(dsn, client_id="other", settings=short())
    with Coordinator(dsn, client_id="test", settings=short()) as strict, other:
        readings = [Reading(one.consumer(TOPIC, group=GROUP).start(), wait=True) for one in (strict, other)]
        published = publish(strict, 100)
        with psycopg.connect(dsn) as connection:
            for number in (1000, 1001):
                strict.publish(TOPIC, number, connection=connection)
            connection.commit()
            strict.publish(TOPIC, 1002, connection=connection)
            connection.rollback()
        wait_until(lambda: sum(len(reading.confirmed) for reading in readings) == 102, 15)
        for reading in readings:
            reading.stop()
            assert reading.errors == []
    assert sorted(readings[0].values + readings[1].values) == [*published, 1000, 1001]


def test_deadlocks__short_timeout_and_members_that_come_and_go__are_none(app, dsn):
    """Case 20, as far as it exists: exchanges, heartbeats, plans, claims, releases, reaps, all at once."""
    before = query(dsn, "select deadlocks from pg_stat_database where datname = current_database()")
    name = sql.Identifier(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("alter database {} set deadlock_timeout to '20ms'").format(name))
    steady = Reading(app.consumer(TOPIC, group=GROUP).start())
    total = 0
    for round_ in range(12):
        total += len(publish(app, 50, start=total))
        passing = [Reading(app.consumer(TOPIC, group=GROUP).start()) for _ in range(2)]
        query(dsn, "select coordinator.reap(3600)")
        time.sleep(0.05 * (round_ % 3))
        for reading in passing:
            reading.stop()
            assert reading.errors == []
    wait_until(lambda: sum(committed(dsn).values()) == total, 15)
    steady.stop()
    assert query(dsn, "select deadlocks from pg_stat_database where datname = current_database()") == before


def test_epoch__changes_of_owner__are_counted_by_one(app, dsn):
    for number in range(1, 4):
        with app.consumer(TOPIC, group=GROUP) as consumer:
            assert consumer.at_end(5)
        assert set(epochs(dsn).values()) == {number}
