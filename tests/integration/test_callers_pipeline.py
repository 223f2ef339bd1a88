"""Calls on a caller's connection in pipeline mode: what the call answers is there when it returns."""

import psycopg
import pytest
from support.aio import in_loop
from support.shell import query

from coordinator import AsyncCoordinator, Coordinator
from coordinator.errors import ConfigError, NotFoundError


@pytest.fixture
def topic(dsn):
    with Coordinator(dsn) as app:
        app.create_topic("orders", partitions=1)
    return "orders"


@pytest.mark.parametrize("autocommit", [False, True])
def test_publish__in_a_pipeline_before_the_topic_is_known__returns_places(dsn, topic, autocommit):
    with Coordinator(dsn) as app, psycopg.connect(dsn, autocommit=autocommit) as connection:
        with connection.pipeline():
            published = app.publish(topic, b"a", connection=connection)
            batch = app.publish_many(topic, [b"b", b"c"], connection=connection)
        assert [published.offset, *(place.offset for place in batch)] == [0, 1, 2]
        connection.commit()
        with app.consumer(topic, group="billing") as consumer:
            assert [message.payload for message in consumer.poll(3, timeout_s=10)] == [b"a", b"b", b"c"]


@in_loop
async def test_apublish__in_a_pipeline_before_the_topic_is_known__returns_places(dsn, topic):
    async with AsyncCoordinator(dsn) as app, await psycopg.AsyncConnection.connect(dsn) as connection:
        async with connection.pipeline():
            published = await app.publish(topic, b"a", connection=connection)
            batch = await app.publish_many(topic, [b"b", b"c"], connection=connection)
        assert [published.offset, *(place.offset for place in batch)] == [0, 1, 2]


def test_publish__unknown_topic_in_a_pipeline__is_named(dsn, topic):
    with Coordinator(dsn) as app, psycopg.connect(dsn) as connection, connection.pipeline():
        with pytest.raises(NotFoundError, match="nothing"):
            app.publish("nothing", b"a", connection=connection)
        connection.rollback()
        assert app.publish(topic, b"a", connection=connection).offset == 0


def test_transaction__on_a_connection_in_a_pipeline__is_refused_and_takes_one_within(dsn, topic):
    """Its COMMIT would only be sent when the block ends."""
    with Coordinator(dsn) as app, psycopg.connect(dsn, autocommit=True) as connection:
        app.publish_many(topic, [b"a", b"b"])
        with app.consumer(topic, group="billing") as consumer:
            first, second = consumer.poll(2, timeout_s=10)
            with (
                connection.pipeline(),
                pytest.raises(ConfigError, match="pipeline mode"),
                first.transaction(connection),
            ):
                pass
            for message in (first, second):
                with message.transaction(connection) as given, given.pipeline():
                    given.execute("select 1")
        assert query(dsn, "select sum(lag) from coordinator.offsets") == [(0,)]


@in_loop
async def test_atransaction__on_a_connection_in_a_pipeline__is_refused_and_takes_one_within(dsn, topic):
    async with AsyncCoordinator(dsn) as app, await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await app.publish(topic, b"a")
        async with app.consumer(topic, group="billing") as consumer:
            (message,) = await consumer.poll(1, timeout_s=10)
            async with connection.pipeline():
                with pytest.raises(ConfigError, match="pipeline mode"):
                    async with message.transaction(connection):
                        pass
            async with message.transaction(connection) as given, given.pipeline():
                await given.execute("select 1")
        assert query(dsn, "select sum(lag) from coordinator.offsets") == [(0,)]
