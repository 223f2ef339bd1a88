"""The ready queries: each runs on a live installation, in any schema, tells what it should, and stands in docs/sql.md."""

import re
from pathlib import Path

import psycopg
import pytest

from coordinator import Coordinator, Outgoing
from coordinator.db import queries

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text("utf-8")
NAMES = [found.name for found in queries.queries()]


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


@pytest.fixture
def busy(dsn):
    """A group with messages of every kind: settled, in hand, failed, blocked behind it, dead."""
    with Coordinator(dsn) as app:
        app.create_topic("orders", 2)
        app.publish_many("orders", [Outgoing({"n": n}, key="ada", partition=0) for n in range(6)])
        app.publish("orders", b"\x00\xff", partition=1)
        with app.consumer("orders", group="billing", retry=[3600.0]) as consumer:
            seen = 0
            while seen < 2:
                for message in consumer.poll(max_messages=1, timeout_s=5):
                    seen += 1
                    if message.partition == 1:
                        message.reject("not for us")
                    else:
                        message.nack()
            consumer.commit()
            yield app


def run(connection, name, schema="coordinator"):
    columns, rows = queries.run(connection, schema, queries.query(name))
    return [dict(zip(columns, row, strict=True)) for row in rows]


def test_queries__those_of_the_package__are_there():
    assert len(NAMES) >= 13
    assert all(found.summary.endswith((".", "?")) and "--" not in found.summary for found in queries.queries())


@pytest.mark.parametrize("name", NAMES)
def test_query__on_an_empty_installation__runs(connection, name):
    run(connection, name)


@pytest.mark.parametrize("name", NAMES)
def test_query__stands_in_the_page__as_it_is(name):
    text = queries.query(name).text
    assert f"**{name}**: {queries.query(name).summary}\n\n```sql\n{text}```" in PAGE


def test_page__every_ready_query__is_a_file():
    section = PAGE.partition("## Ready queries")[2]
    assert sorted(re.findall(r"^\*\*([a-z-]+)\*\*", section, re.MULTILINE)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_query__in_another_schema__runs(empty_dsn, name):
    from coordinator.db.schema import install

    install(empty_dsn, "shop_log")
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        run(connection, name, "shop_log")


def test_answers__of_a_busy_group__are_true(connection, busy):
    (behind,) = run(connection, "who-is-behind")
    assert (behind["group"], behind["lag"], behind["parked"], behind["dead_letters"]) == ("billing", 6, 1, 1)
    (owned,) = run(connection, "who-owns-what")
    assert (owned["partitions"], owned["moving"]) == ([0, 1], 0)
    (error, *_) = run(connection, "what-fails-most")
    assert error["group"] == "billing"
    (rate,) = run(connection, "rates")
    assert rate["published_per_s"] == pytest.approx(7 / 600, abs=0.001)
    assert rate["settled_per_s"] == pytest.approx(2 / 600, abs=0.001)
    (letter,) = run(connection, "dead-letters")
    assert (letter["reason"], letter["value"]) == ("rejected", None)
    (held,) = run(connection, "in-flight")
    assert (held["partition"], held["first_offset"]) == (0, 1) or held["messages"] > 0
    assert run(connection, "topics")[0]["messages"] == 7
    assert run(connection, "segments")[0]["segment"] == 1


def test_open_publishers__a_session_that_has_published__is_listed(connection, busy, dsn):
    with psycopg.connect(dsn, application_name="importer") as other:
        busy.publish("orders", 1, partition=1, connection=other)
        (found,) = run(connection, "open-publishers")
        assert (found["partition"], found["application_name"], found["state"]) == (1, "importer", "idle in transaction")
        other.rollback()


def test_who_blocks__a_session_that_waits__is_listed_with_its_blocker(connection, busy, dsn):
    from support.sessions import Pending
    from support.shell import wait_until

    with psycopg.connect(dsn, application_name="holder") as holder, psycopg.connect(dsn) as waiter:
        holder.execute("select from coordinator.groups for update")
        waiting = Pending(lambda: waiter.execute("select from coordinator.groups for update"))
        (found,) = wait_until(lambda: run(connection, "who-blocks"), 30)
        assert found["blocker"] == "holder"
        holder.rollback()
        waiting.result()


def test_show_messages__json_and_what_is_none__are_told_apart(connection, dsn):
    with Coordinator(dsn) as app:
        app.create_topic("mixed", 1)
        for payload in (b'{"a": [1]}', b"\xff\xfe", b'{"a": "\\u0000"}', b"null", b"[" * 100_000):
            app.publish("mixed", payload)
        connection.execute(
            "select coordinator.publish_bytes('mixed', '{\"big\": 9007199254740993}', p_content_type => null)"
        )
        connection.execute("update coordinator.topic_1_s1 set content_type = null")
    rows = connection.execute(
        'select m."offset", m.value::text, m.payload_bytes from coordinator.show_messages(%s) m', ("mixed",)
    )
    assert rows.fetchall() == [
        (0, '{"a": [1]}', 10),
        (1, None, 2),
        (2, None, 15),
        (3, "null", 4),
        (4, None, 100_000),
        (5, '{"big": 9007199254740993}', 25),
    ]
    with pytest.raises(psycopg.Error) as caught:
        connection.execute("select * from coordinator.show_messages('missing')")
    assert caught.value.sqlstate == "KG003"


def test_group_rates__group_older_than_ten_minutes__counts_what_came_since(connection, busy):
    """The group's clock is put back: the state of then is the row that is not younger."""
    connection.execute("update coordinator.group_topics set created_at = created_at - interval '1 hour'")
    connection.execute(
        "insert into coordinator.progress select group_id, topic_id, partition, -1, 0, 0, 0, '{}', 0, now() - interval '11 minutes' "
        "from coordinator.claims"
    )
    connection.execute(
        "insert into coordinator.progress select group_id, topic_id, partition, -2, 0, 0, 0, '{[0,7)}', 0, now() - interval '1 hour' "
        "from coordinator.claims"
    )
    (rate,) = connection.execute("select settled from coordinator.group_rates").fetchall()
    assert rate == (2,)


def test_rates__after_a_seek__count_what_was_settled_since(connection, dsn):
    """They took the distance of the seek for messages, and forgot the settled ones after one back."""
    with Coordinator(dsn) as app:
        app.create_topic("t", 1)
        app.publish_many("t", list(range(100)))

        def settle(count):
            with app.consumer("t", group="g") as consumer:
                found = []
                while len(found) < count:
                    for message in consumer.poll(count - len(found), 1):
                        message.ack()
                        found.append(message)
                consumer.commit()

        def rates(since_seek, at_most):
            (rate,) = connection.execute("select settled from coordinator.group_rates").fetchall()
            assert rate == (since_seek,)
            # Of each ten seconds the newest row is kept, so what was settled shortly before a seek may be forgotten.
            assert since_seek <= sum(row["settled"] for row in run(connection, "rates-by-minute")) <= at_most

        settle(5)
        rates(5, 5)
        app.seek("g", to="latest")
        rates(0, 5)
        app.publish("t", 100)
        settle(1)
        rates(1, 6)
        app.seek("g", to="earliest")
        rates(0, 6)
        settle(7)
        rates(7, 13)


def test_rates__messages_were_skipped__does_not_count_them_as_settled(connection, dsn):
    with Coordinator(dsn) as app:
        app.create_topic("t", 1)
        app.publish_many("t", list(range(10)))
        with app.consumer("t", group="g") as consumer:
            for message in consumer.poll(4, 10):
                message.ack()
        app.skip("g", "t", 0, 4)
        assert connection.execute("select settled from coordinator.group_rates").fetchall() == [(4,)]
