"""Schedules of two and three sessions in which a broken protocol loses a message; each raises AssertionError if one is lost.

A schedule gets a Db with gated functions and a class of readers; tests run all of them on the protocol as it is, and on
mutants of it.
"""

from contextlib import suppress
from uuid import uuid4

from support.patches import PUBLISH_STEPS, ROTATION_STEPS


def late_commit(db, reader_class):
    """A lower offset commits after a higher one was read."""
    a, b, reader = db.session(), db.session(), reader_class(db)
    a.begin()
    low = a.publish()
    high = b.publish()
    assert reader.settle_down() == [high]
    a.commit()
    assert reader.settle_down() == [high, low]


def commit_between_steps_of_a_pass(db, reader_class):
    """The publisher of a gap commits between V and L, or between L and S."""
    for step in ("pass:1", "pass:2"):
        a, b, reader = db.session(), db.session(), reader_class(db)
        a.begin()
        low = a.publish()
        b.publish()
        reader.exchange()
        reader.fetch()
        run_pass(db, reader, step, a.commit)
        assert low in reader.settle_down(), f"committed at {step}"
        assert low not in reader.burnt


def pass_while_publisher_is_stopped(db, reader_class):
    """A publisher is stopped before each of its steps while passes run, and commits then."""
    for step in PUBLISH_STEPS:
        a, b, reader = db.session(), db.session(), reader_class(db)
        a.stop_at(step).begin()
        with db.gate(step) as gate:
            publishing = a.start_publish()
            gate.arrived()
            b.publish()
            reader.settle_down()
        ((offset,),) = publishing.result()
        reader.settle_down()
        a.commit()
        assert offset in reader.settle_down(), f"stopped at {step}"


def rotation_while_publisher_is_stopped(db, reader_class):
    """A segment is rotated while a publisher is stopped before each of its steps; another publishes to the new one."""
    for step in PUBLISH_STEPS:
        a, b, reader = db.session(), db.session(), reader_class(db)
        a.stop_at(step).begin()
        with db.gate(step) as gate:
            publishing = a.start_publish()
            gate.arrived()
            db.rotate()
            b.publish()
            reader.settle_down()
        ((offset,),) = publishing.result()
        reader.settle_down()
        a.commit()
        assert offset in reader.settle_down(), f"stopped at {step}"
        assert sorted(reader.received) == offsets_in_table(db), f"stopped at {step}"


def publish_while_rotation_is_stopped(db, reader_class):
    """Somebody publishes while a rotation stands on either side of its setval."""
    for step in ROTATION_STEPS:
        rotator, b, reader = db.session(), db.session(), reader_class(db)
        segment = rotator.one("select coordinator.add_segment('t')")
        rotator.stop_at(step)
        with db.gate(step) as gate:
            rotating = rotator.start("select coordinator.open_segment('t', %s)", segment)
            gate.arrived()
            offset = b.publish()
        rotating.result()
        assert offset in reader.settle_down(), f"stopped at {step}"
        assert sorted(reader.received) == offsets_in_table(db)


def publish_after_an_empty_read(db, reader_class):
    """A reader looks at a topic ahead of its end; offsets that were not handed out are no gaps."""
    b, reader = db.session(), reader_class(db)
    reader.settle_down()
    first = b.publish()
    reader.settle_down()
    second = b.publish()
    assert reader.settle_down() == [first, second]


def exchange_under_an_old_epoch(db, reader_class):
    """A zombie that knows the newest seq, of the same coordinator, settles what it never handled."""
    b, reader = db.session(), reader_class(db)
    offset = b.publish()
    reader.exchange()
    old_epoch = reader.epoch
    reader.claim()
    reader.exchange()
    status = reader.exchange(epoch=old_epoch, settled=[(offset, offset + 1)])
    if reader.exchange() == "stale":
        reader.recover()
    assert reader.settle_down() == [offset]
    assert status == "fenced"


def window_is_committed_first(db, reader_class):
    """What is handed over lies in a window that everybody can see."""
    b, reader = db.session(), reader_class(db)

    def look(offset):
        hwm = db.observer.one(
            "select max(p.hwm) from coordinator.progress p where p.group_id = %s and p.epoch = %s",
            reader.group_id,
            reader.epoch,
        )
        assert hwm is not None
        assert offset < hwm, f"{offset} started, the window ends at {hwm}"

    reader.on_delivery = look
    offset = b.publish()
    assert reader.settle_down() == [offset]


def cursor_fails_in_a_savepoint(db, reader_class):
    """A cursor over publish() fails in a savepoint; what it published before the savepoint stays."""
    a, reader = db.session(), reader_class(db)
    a.begin()
    a.run(
        "declare c cursor for select (coordinator.publish('t', v.p::jsonb, p_partition => 0, p_wake => false)).\"offset\" "
        "from (values ('1'), (null)) as v(p)"
    )
    offset = a.one("fetch 1 from c")
    a.run("savepoint s")
    fails(a, "fetch 1 from c")
    a.run("rollback to savepoint s")
    reader.settle_down()
    a.commit()
    assert reader.settle_down() == [offset]


def publish_to_many_partitions(db, reader_class):
    """A transaction takes the topic's lock instead of one per partition."""
    db.create_topic("wide", 20)
    a, b, reader = db.session(), db.session(), reader_class(db, 3, topic="wide")
    a.begin()
    a.run(
        "select coordinator.publish_many('wide', array_fill('1'::bytea, array[17]), "
        "p_partitions => array(select generate_series(0, 16)), p_wake => false)"
    )
    b.publish(partition=3, topic="wide")
    reader.settle_down()
    a.commit()
    assert sorted(reader.settle_down()) == [0, 1]


def prepare_between_passes(db, reader_class):
    """The publisher is prepared between two passes, and committed by another session."""
    a, b, reader = db.session(), db.session(), reader_class(db)
    a.begin()
    low = a.publish()
    high = b.publish()
    reader.poll()
    name = f"gap_{a.pid}"
    a.run(f"prepare transaction '{name}'")
    try:
        assert reader.settle_down() == [high]
    finally:
        b.run(f"commit prepared '{name}'")
    assert reader.settle_down() == [high, low]


def heartbeat_late_in_its_transaction(db, reader_class):
    """A transaction waits before its heartbeat, for a lock maybe; the lease counts from the heartbeat, not from its begin."""
    a, b, member = db.session(), db.session(), uuid4()
    a.run("select coordinator.register(%s, 'late', 'here', 1, 2)", member)
    a.begin()
    a.run("select pg_sleep(2.5)")
    a.run("select coordinator.heartbeat(%s)", member)
    a.commit()
    assert member not in b.one("select array(select r.member_id from coordinator.reap(3600) r)"), (
        "declared dead right after its heartbeat"
    )


def takeover_while_an_ack_is_under_way(db, reader_class):
    """An owner is declared dead while a handler of its is about to commit its ack: the heir waits, and does not handle it again."""
    b, reader, handler, heir = db.session(), reader_class(db), db.session(), db.session()
    offset = b.publish()
    reader.exchange()
    reader.fetch()
    place = (reader.group_id, reader.topic_id, reader.partition)
    handler.begin()
    handler.run(
        "select coordinator.ack(%s, %s, %s, %s, %s, array[%s::bigint], array[0])",
        reader.id,
        *place,
        reader.epoch,
        offset,
    )
    db.observer.run("update coordinator.coordinators set state = 'dead' where coordinator = %s", reader.id)
    member = uuid4()
    heir.run("select coordinator.register(%s, 'heir', 'here', 1, 60)", member)

    def claim():
        heir.begin()
        found = heir.run(
            "select c.committed from coordinator.claim(%s, array[%s::int], array[%s::int], array[%s::int]) c",
            member,
            *place,
        )
        heir.commit()
        return found

    taken = claim()
    handler.commit()
    assert (taken or claim()) == [(offset + 1,)], "acked by the old owner, and given to the new one"


class DiedError(Exception):
    """The process is gone."""


def process_dies_when_a_dead_letter_is_committed(db, reader_class):
    """The process dies right after a COMMIT: what is settled then has its dead letter."""
    b, reader = db.session(), reader_class(db)
    offset = b.publish()
    reader.exchange()
    reader.fetch()

    def die():
        raise DiedError

    reader.after_commit = die
    with suppress(DiedError):
        reader.bury(offset)
    db.observer.run("update coordinator.coordinators set state = 'dead' where coordinator = %s", reader.id)
    heir = reader_class(db, group=reader.group)
    letters = [row[0] for row in db.observer.run('select d."offset" from coordinator.dead_letters d')]
    assert sorted([*letters, *heir.settle_down()]) == [offset], "neither a dead letter nor delivered again"


SCHEDULES = (
    late_commit,
    commit_between_steps_of_a_pass,
    pass_while_publisher_is_stopped,
    rotation_while_publisher_is_stopped,
    publish_while_rotation_is_stopped,
    publish_after_an_empty_read,
    exchange_under_an_old_epoch,
    window_is_committed_first,
    cursor_fails_in_a_savepoint,
    publish_to_many_partitions,
    prepare_between_passes,
    heartbeat_late_in_its_transaction,
    takeover_while_an_ack_is_under_way,
    process_dies_when_a_dead_letter_is_committed,
)


def run_pass(db, reader, step, meanwhile):
    """Run one pass and do something while it stands at a step."""
    reader.session.stop_at(step)
    asked, call = reader.start_pass()
    reader.begin_pass()
    with db.gate(step) as gate:
        passing = reader.session.start(*call)
        gate.arrived()
        meanwhile()
    reader.end_pass(asked, passing.result())
    reader.session.stop_at()


def offsets_in_table(db, topic_id=1, partition=0):
    return [
        offset
        for (offset,) in db.observer.run(
            f'select m."offset" from coordinator.topic_{topic_id} m where m.partition = %s order by 1', partition
        )
    ]


def fails(session, text, *parameters):
    """Run a statement that the server refuses; returns the error."""
    try:
        session.run(text, *parameters)
    except Exception as error:
        return error
    raise AssertionError(f"was not refused: {text}")
