"""Who is told, and when, that what was settled is not durable: commit, close, and several callers of one consumer."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.aio import coordinator, in_loop, until
from support.ledger import dead
from support.shell import GROUP, TOPIC, locked, query, short, wait_until

from coordinator import Coordinator
from coordinator.errors import NotStoredError, StaleEpochError, UnavailableError

REFUSING = """
create function refuse() returns trigger language plpgsql as $$ begin raise exception 'the disk of the dead is full'; end $$;
create trigger refuse before insert on coordinator.dead_letters for each row execute function refuse();
"""
HELD = "select 1 from coordinator.claims c for update"


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="test", settings=short(commit_timeout_s=3.0)) as made:
        made.create_topic(TOPIC, 2)
        for partition in (0, 1):
            made.publish(TOPIC, partition, partition=partition)
        yield made


def one_of_each(consumer):
    found = {}

    def both():
        found.update({message.partition: message for message in consumer.poll(2, 0.1)})
        return len(found) == 2

    wait_until(both)
    return found


def lose_all(consumer):
    runtime = consumer._runtime
    with runtime.changed:
        runtime.engine.drop(list(runtime.engine.partitions))
        runtime.changed.notify_all()


def test_commit__of_two_threads_one_after_the_other__each_is_told_of_its_own_loss(app, dsn):
    """Mutant: a loss is told once, to whoever asks first."""
    with (
        app.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer,
        ThreadPoolExecutor(1) as a,
        ThreadPoolExecutor(1) as b,
    ):
        messages = one_of_each(consumer)
        with locked(dsn, HELD):
            a.submit(messages[0].ack).result(30)
            b.submit(messages[1].ack).result(30)
            lose_all(consumer)
            with pytest.raises(StaleEpochError):
                b.submit(consumer.commit).result(30)
            with pytest.raises(StaleEpochError, match=f"{TOPIC}/0"):
                a.submit(consumer.commit).result(30)
            # Told once each, and who has settled nothing is not told at all, as others have been.
            for thread in (a, b):
                thread.submit(consumer.commit).result(30)
            consumer.commit()


def test_commit__of_two_threads_at_once__both_are_told(app, dsn):
    with app.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer, ThreadPoolExecutor(2) as pool:
        messages = one_of_each(consumer)
        ready = threading.Barrier(3)

        def settle_and_commit(message):
            message.ack()
            ready.wait(30)
            consumer.commit()

        with locked(dsn, HELD):
            both = [pool.submit(settle_and_commit, message) for message in messages.values()]
            ready.wait(30)
            lose_all(consumer)
            assert [type(each.exception(30)) for each in both] == [StaleEpochError, StaleEpochError]


def test_commit__from_another_thread_than_the_acks__is_told(app, dsn):
    with app.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer, ThreadPoolExecutor(1) as other:
        messages = one_of_each(consumer)
        with locked(dsn, HELD):
            messages[0].ack()
            lose_all(consumer)
            with pytest.raises(StaleEpochError):
                other.submit(consumer.commit).result(30)


def test_commit__not_in_time__the_next_is_told_of_the_loss_before_it(app, dsn):
    """Mutant: what is lost is forgotten when the commit that would have told of it fails otherwise."""
    with app.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer:
        messages = one_of_each(consumer)
        with locked(dsn, HELD):
            for message in messages.values():
                message.ack()
            with consumer._runtime.changed:
                consumer._runtime.engine.drop([messages[0].owner.key])
            with pytest.raises(UnavailableError):
                consumer.commit()
        with pytest.raises(StaleEpochError, match=f"{TOPIC}/0"):
            consumer.commit()
        consumer.commit()


def test_consumer__never_commits__does_not_keep_the_claims_it_lost(app, dsn):
    with app.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer:
        (message, *_) = one_of_each(consumer).values()
        for _ in range(1000):
            claim = type("Claim", (), {"cut_off": True, "lost": True, "source": object()})()
            consumer._settling.caller.note(claim)
        assert len(consumer._settling.caller._claims) < 100
        consumer._settling.caller.take()
        message.ack()


def test_reject__cannot_be_stored__commit_and_close_say_so(app, dsn):
    query(dsn, REFUSING)
    consumer = app.consumer(TOPIC, group=GROUP, auto_ack=False).start()
    messages = one_of_each(consumer)
    messages[0].reject("broken")
    messages[1].ack()
    with pytest.raises(NotStoredError, match="the disk of the dead is full"):
        consumer.commit()
    # Again, also while it is being sent once more.
    for _ in range(3):
        with pytest.raises(NotStoredError):
            consumer.commit()
    assert query(dsn, "select o.current_offset from coordinator.offsets o order by o.partition") == [(0,), (1,)]
    with pytest.raises(NotStoredError):
        consumer.close()
    assert dead(dsn) == []
    query(dsn, "drop trigger refuse on coordinator.dead_letters")
    with app.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer:
        (message,) = consumer.poll(1, 30)
        assert (message.partition, message.attempt) == (0, 1)
        message.reject("broken")
        consumer.commit()
        assert len(dead(dsn)) == 1


def test_reject__is_stored_in_the_end__commit_returns(app, dsn):
    query(dsn, REFUSING)
    with app.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer:
        messages = one_of_each(consumer)
        messages[0].reject("broken")
        messages[1].ack(wait=True)  # does not wait for it
        with pytest.raises(NotStoredError):
            consumer.commit()
        query(dsn, "drop trigger refuse on coordinator.dead_letters")
        wait_until(lambda: dead(dsn), 30)

        def told():
            # The row is there before the consumer has read that it is.
            with contextlib.suppress(NotStoredError):
                consumer.commit()
                return True

        wait_until(told, 30)


def test_close__what_was_settled_cannot_be_written__says_so(app, dsn):
    """Mutant: it waits for as long as it may, and returns as if all were well."""
    consumer = app.consumer(TOPIC, group=GROUP, auto_ack=False).start()
    messages = one_of_each(consumer)
    with locked(dsn, HELD):
        messages[0].ack()
        with pytest.raises(UnavailableError, match="may be delivered again"):
            consumer.close()
    consumer.close()


def test_leaving__what_was_settled_cannot_be_written__the_error_of_the_body_comes_first(app, dsn):
    def leave(holding):
        with app.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer:
            messages = one_of_each(consumer)
            holding.enter_context(locked(dsn, HELD))
            messages[0].ack()
            raise RuntimeError("mine")

    with contextlib.ExitStack() as holding, pytest.raises(RuntimeError, match="mine"):
        leave(holding)


@in_loop
async def test_async_commit__of_two_tasks__each_is_told_of_its_own_loss(dsn):
    async with coordinator(dsn, commit_timeout_s=3.0) as app:
        await app.create_topic(TOPIC, 2)
        for partition in (0, 1):
            await app.publish(TOPIC, partition, partition=partition)
        async with app.consumer(TOPIC, group=GROUP, auto_ack=False) as consumer:
            found = {}
            while len(found) < 2:
                found.update({message.partition: message for message in await consumer.poll(2, 0.1)})
            acked, lost, first = asyncio.Event(), asyncio.Event(), asyncio.Event()

            async def settle_and_commit(message, turn):
                message.ack()
                acked.set()
                await lost.wait()
                await turn.wait()
                try:
                    await consumer.commit()
                finally:
                    first.set()

            with locked(dsn, HELD):
                now = asyncio.Event()
                now.set()
                tasks = [
                    asyncio.create_task(settle_and_commit(found[0], first)),
                    asyncio.create_task(settle_and_commit(found[1], now)),
                ]
                await until(acked.is_set, 30)
                await asyncio.sleep(0)
                consumer._runtime.engine.drop(list(consumer._runtime.engine.partitions))
                lost.set()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [StaleEpochError, StaleEpochError]
            await consumer.commit()


@in_loop
async def test_async_reject__cannot_be_stored__commit_and_close_say_so(dsn):
    async with coordinator(dsn, commit_timeout_s=3.0) as app:
        await app.create_topic(TOPIC, 1)
        await app.publish(TOPIC, 0)
        query(dsn, REFUSING)
        consumer = app.consumer(TOPIC, group=GROUP, auto_ack=False)
        (message,) = await consumer.poll(1, 30)
        message.reject("broken")
        for _ in range(3):
            with pytest.raises(NotStoredError, match="the disk of the dead is full"):
                await consumer.commit()
        with pytest.raises(NotStoredError):
            await consumer.close()
