"""Topics that are deleted, and messages that are dropped, under transactions that have seen them."""

import psycopg
import pytest
from support.patches import replaced, sql_text
from support.sessions import Db, wait_until


def raises(state, call, *arguments):
    with pytest.raises(psycopg.Error) as raised:
        call(*arguments)
    assert raised.value.sqlstate == state, raised.value
    return str(raised.value)


def delete(db):
    db.observer.run("select * from coordinator.delete_topic('t', true)")
    return {dropped for (dropped,) in db.observer.run("select d.dropped from coordinator.drop_remains() d")}


CALLS = {
    "publish": "select * from coordinator.publish('t', '1')",
    "publish with a key": "select * from coordinator.publish('t', '1', p_dedup_key => 'k')",
    "publish many": "select * from coordinator.publish_many('t', array['1', '2']::bytea[])",
    "peek": "select * from coordinator.peek('t', 0, 0, 10)",
    "show": "select * from coordinator.show_messages('t', 0)",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_topic__deleted_later_than_the_snapshot__is_told(db, call):
    """Mutant: 42P01, XX000 or 23503, as PostgreSQL has it."""
    db.observer.publish()
    caller = db.session().begin("repeatable read")
    caller.run("select 1 from coordinator.topics")
    assert delete(db) == {True}
    assert "topic 't' was deleted" in raises("KG013", caller.run, call)


def test_publish__topic_deleted_and_dropped_before_its_first_lock__is_told(db):
    publisher = db.session().stop_at("publish:lock")
    with db.gate("publish:lock") as gate:
        publishing = publisher.start_publish()
        gate.arrived()
        assert delete(db) == {True}
    raises("KG013", publishing.result)


@pytest.mark.parametrize("step", ["publish:segment", "publish:nextval", "publish:again", "publish:insert"])
def test_publish__topic_deleted_later__goes_on_with_all_of_it(db, step):
    """All or nothing of a topic is dropped. Mutant: what is free is dropped, and a publisher meets a part that is gone."""
    publisher = db.session().stop_at(step)
    with db.gate(step) as gate:
        publishing = publisher.start_publish()
        gate.arrived()
        assert delete(db) == {False}
    publishing.result()
    assert {dropped for (dropped,) in db.observer.run("select d.dropped from coordinator.drop_remains() d")} == {True}


def test_publish__for_later_and_the_topic_is_deleted_before_it_is_kept__is_told(dsn):
    text = sql_text("schedule_messages")
    gated = replaced(text, ("begin\n", "begin\n    perform coordinator.gate('schedule');\n"))
    with Db(dsn, patches=[gated]) as db:
        publisher = db.session().stop_at("schedule")
        with db.gate("schedule") as gate:
            publishing = publisher.start("select * from coordinator.publish('t', '1', p_delay_s => 100)")
            gate.arrived()
            delete(db)
        raises("KG013", publishing.result)


def test_peek__messages_dropped_later_than_the_snapshot__is_told(db):
    db.observer.publish()
    reader = db.session().begin("repeatable read")
    reader.run("select 1 from coordinator.topics")
    table = db.observer.one("select format('%s_s1', t.messages) from coordinator.topics t")
    db.observer.run(f"drop table {table}")
    assert "dropped by retention" in raises("KG014", reader.run, CALLS["peek"])
    reader.rollback()


def test_drop_remains__a_publisher_waits_for_it__ends_by_being_told(db):
    dropper = db.session().begin()
    publisher = db.session().stop_at("publish:lock")
    with db.gate("publish:lock") as gate:
        publishing = publisher.start_publish()
        gate.arrived()
        db.observer.run("select * from coordinator.delete_topic('t', true)")
        dropper.run("select * from coordinator.drop_remains()")
    wait_until(
        lambda: db.observer.one("select count(*) from pg_locks l where not l.granted and l.pid = %s", publisher.pid)
    )
    dropper.commit()
    raises("KG013", publishing.result)
