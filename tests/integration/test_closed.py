"""What is closed is done with: whoever uses it all the same is told, and nothing is opened again behind his back."""

import asyncio
import threading

import psycopg
import pytest
from support.aio import coordinator, in_loop
from support.shell import GROUP, TOPIC, query, wait_until

from coordinator import AsyncCoordinator, Coordinator, Settings
from coordinator.errors import ClosedError

COUNT = (
    "select count(*) from pg_stat_activity where application_name like 'coordinator%' and datname = current_database()"
)


@pytest.mark.direct("counts the sessions of a client on the server")
@pytest.mark.parametrize("used_before", [False, True])
def test_closed__publish_and_the_rest__raise_closed_error(dsn, used_before):
    app = Coordinator(dsn)
    if used_before:
        app.create_topic(TOPIC, 1)
    app.close()
    app.close()
    for use in (
        lambda: app.publish(TOPIC, 1),
        app.topics,
        lambda: app.consumer(TOPIC, group=GROUP).start(),
        lambda: app.maintain(once=True),
        app.__enter__,
    ):
        with pytest.raises(ClosedError):
            use()
    app.subscribe(TOPIC, group=GROUP)(print)
    with pytest.raises(ClosedError):
        app.run(install_signal_handlers=False)
    wait_until(lambda: query(dsn, COUNT) == [(0,)])


def test_closed__publish_on_the_callers_connection__raises_closed_error(dsn):
    app = Coordinator(dsn)
    app.create_topic(TOPIC, 1)
    with psycopg.connect(dsn) as connection:
        app.publish(TOPIC, 1, connection=connection)
        app.close()
        with pytest.raises(ClosedError):
            app.publish(TOPIC, 2, connection=connection)
        # Nothing was sent: the transaction is as good as before.
        connection.commit()
    assert query(dsn, "select count(*) from coordinator.topic_1") == [(1,)]


@pytest.mark.direct("counts the sessions of a client on the server")
def test_close__while_a_connection_is_lent__it_is_closed_when_it_comes_back(dsn):
    app = Coordinator(dsn)
    app.create_topic(TOPIC, 1)
    lent, closed, problems = threading.Event(), threading.Event(), []

    def work():
        try:
            with app._pool.connection() as connection:
                lent.set()
                closed.wait(20)
                connection.execute("select 1")
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert lent.wait(20)
    app.close()
    closed.set()
    thread.join(20)
    assert not problems
    wait_until(lambda: query(dsn, COUNT) == [(0,)])


@pytest.mark.direct("counts the sessions of a client on the server")
@pytest.mark.parametrize("used_before", [False, True])
@in_loop
async def test_closed__asyncio__raises_closed_error(dsn, used_before):
    app = coordinator(dsn)
    if used_before:
        await app.create_topic(TOPIC, 1)
    await app.close()
    await app.close()
    for use in (
        lambda: app.publish(TOPIC, 1),
        app.topics,
        lambda: app.consumer(TOPIC, group=GROUP).start(),
        lambda: app.maintain(once=True),
        app.__aenter__,
    ):
        with pytest.raises(ClosedError):
            await use()
    wait_until(lambda: query(dsn, COUNT) == [(0,)])


# Longer than any test waits: who gets a partition within it did not get it by the end of a lease.
SETTINGS = Settings(lease_s=120, heartbeat_s=1, membership_poll_s=0.2, rebalance_debounce_s=0, static_grace_s=0)


def owners(dsn):
    return {row[0] for row in query(dsn, "select c.owner::text from coordinator.claims c")}


@pytest.mark.direct("counts the sessions of a client on the server")
def test_close__consumers_without_with__leave_at_once_and_what_they_had_goes_on(dsn):
    first, second = Coordinator(dsn, settings=SETTINGS), Coordinator(dsn, settings=SETTINGS)
    first.create_topic(TOPIC, 4)
    first.publish_many(TOPIC, [{"n": n} for n in range(8)])
    gone = first.consumer(TOPIC, group=GROUP, ordering="none")
    held = gone.poll(8, 30)
    assert held
    held[0].ack()
    never_used = first.consumer(TOPIC, group=GROUP)
    stays = second.consumer(TOPIC, group=GROUP, ordering="none")
    stays.start()
    first.close()
    assert gone.closed
    assert never_used.closed
    assert gone.poll(timeout_s=0) == []
    with pytest.raises(ClosedError):
        never_used.start()
    wait_until(lambda: owners(dsn) == {stays.member_id}, 30, "the takeover")
    found = {}
    while len(found) < 7:
        for message in stays.poll(8, 30):
            found[message.value["n"]] = message.attempt
            message.ack()
    # What was acked is settled; what was only handed over is not charged.
    assert held[0].value["n"] not in found
    assert set(found.values()) == {1}
    second.close()
    assert query(dsn, "select count(*) from coordinator.members") == [(0,)]
    wait_until(lambda: query(dsn, COUNT) == [(0,)])


@pytest.mark.direct("counts the sessions of a client on the server")
def test_close__consumers_on_asyncio__leave_at_once(dsn):
    async def work():
        with Coordinator(dsn) as admin:
            admin.create_topic(TOPIC, 4)
        first, second = AsyncCoordinator(dsn, settings=SETTINGS), AsyncCoordinator(dsn, settings=SETTINGS)
        gone = first.consumer(TOPIC, group=GROUP)
        await gone.start()
        never_used = first.consumer(TOPIC, group=GROUP)
        stays = second.consumer(TOPIC, group=GROUP)
        await stays.start()
        await first.close()
        assert gone.closed
        with pytest.raises(ClosedError):
            await never_used.start()
        async with asyncio.timeout(30):
            while await asyncio.to_thread(owners, dsn) != {stays.member_id}:  # noqa: ASYNC110 - a table has no event
                await asyncio.sleep(0.05)
        await second.close()

    asyncio.run(work())
    assert query(dsn, "select count(*) from coordinator.members") == [(0,)]
    wait_until(lambda: query(dsn, COUNT) == [(0,)])


def test_close__one_of_the_consumers_waits_in_another_thread__its_loop_ends(dsn):
    app = Coordinator(dsn)
    app.create_topic(TOPIC, 1)
    consumer = app.consumer(TOPIC, group=GROUP)
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(consumer))
    thread.start()
    wait_until(lambda: query(dsn, "select count(*) from coordinator.members") == [(1,)], 30, "a member")
    app.close()
    thread.join(30)
    assert not thread.is_alive()
    assert query(dsn, "select count(*) from coordinator.members") == [(0,)]
