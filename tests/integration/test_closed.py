"""What is closed is done with: whoever uses it all the same is told, and nothing is opened again behind his back."""

import threading

import psycopg
import pytest
from support.aio import coordinator, in_loop
from support.shell import GROUP, TOPIC, query

from coordinator import Coordinator
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
    assert query(dsn, COUNT) == [(0,)]


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
    assert query(dsn, COUNT) == [(0,)]


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
    assert query(dsn, COUNT) == [(0,)]
