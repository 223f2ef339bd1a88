"""Transactions that have published and stay open: what comes behind them, with orderings that do not wait for them."""

import contextlib

import psycopg
import pytest
from support.shell import GROUP, TOPIC, drain, wait_until

from coordinator import Coordinator, Settings

ORDERINGS = ["key", "none"]


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="test") as made:
        made.create_topic(TOPIC, 1)
        yield made


@pytest.mark.parametrize("ordering", ORDERINGS)
@pytest.mark.parametrize("count", [64, 1000])
def test_open_transaction__with_more_than_a_window__what_is_published_behind_it_comes(app, dsn, ordering, count):
    with psycopg.connect(dsn) as held, app.consumer(TOPIC, group=GROUP, ordering=ordering) as consumer:
        consumer.poll(timeout_s=0.5)
        app.publish_many(TOPIC, list(range(count)), connection=held)
        for value in range(20):
            app.publish(TOPIC, 10_000 + value)
        behind = drain(consumer, 20)
        assert [message.value for message in behind] == [10_000 + value for value in range(20)]
        assert consumer.status().stopped == ()
        held.commit()
        assert [message.value for message in drain(consumer, count)] == list(range(count))


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_rolled_back_publishes__while_a_transaction_is_open__are_read_past(app, dsn, ordering):
    """Nobody can tell yet that they are not the open one's."""

    class UndoneError(Exception):
        pass

    with psycopg.connect(dsn) as held, app.consumer(TOPIC, group=GROUP, ordering=ordering) as consumer:
        app.publish(TOPIC, "held", connection=held)
        with psycopg.connect(dsn, autocommit=True) as other:
            for value in range(120):
                with contextlib.suppress(UndoneError), other.transaction():
                    app.publish(TOPIC, -1, connection=other)
                    raise UndoneError
                app.publish(TOPIC, value)
        assert [message.value for message in drain(consumer, 120)] == list(range(120))
        held.commit()
        assert [message.value for message in drain(consumer, 1)] == ["held"]


@pytest.mark.parametrize("ordering", ["partition", *ORDERINGS])
def test_status__more_is_open_than_is_read_past__names_the_partition(dsn, ordering):
    """At `max_holes` runs of missing offsets, or in partition order at the first, nothing more is read or started."""
    with Coordinator(dsn, client_id="test", settings=Settings(prefetch=5)) as app:
        app.create_topic(TOPIC, 1)
        with psycopg.connect(dsn) as held, app.consumer(TOPIC, group=GROUP, ordering=ordering) as consumer:
            consumer.poll(timeout_s=0.5)
            app.publish_many(TOPIC, list(range(200)), connection=held)
            app.publish(TOPIC, "behind")
            wait_until(lambda: [stopped.reason for stopped in consumer.status().stopped] == ["open transactions"])
            (stopped,) = consumer.status().stopped
            assert (stopped.group, stopped.topic, stopped.partition) == (GROUP, TOPIC, 0)
            assert consumer.poll(timeout_s=0.3) == []
            held.commit()
            assert len(drain(consumer, 201)) == 201
            wait_until(lambda: consumer.status().stopped == ())
