"""fetch hands out what lies in a committed window, of the caller's epoch, and is not done."""

from support.reader import Reader


def fetch(reader, epoch=None, reads="{[0,)}"):
    return [
        offset
        for (offset,) in reader.session.run(
            'select f."offset" from coordinator.fetch(array[%s::int], array[%s::int], array[%s::int], array[%s::bigint], array[%s]) f',
            reader.group_id,
            reader.topic_id,
            reader.partition,
            reader.epoch if epoch is None else epoch,
            reads,
        )
    ]


def test_fetch__before_the_window_is_committed__hands_out_nothing(db):
    reader = Reader(db)
    db.session().publish()
    assert fetch(reader) == []
    reader.exchange()
    assert fetch(reader) == [0]


def test_fetch__under_an_old_epoch__hands_out_nothing(db):
    reader = Reader(db)
    db.session().publish()
    reader.exchange()
    old = reader.epoch
    reader.claim()
    reader.exchange()
    assert fetch(reader, epoch=old) == []
    assert fetch(reader) == [0]


def test_fetch__some_of_the_window_is_done__leaves_it_out_and_keeps_the_order(db):
    reader, b = Reader(db), db.session()
    for _ in range(9):
        b.publish()
    reader.exchange()
    reader.settled = [(2, 3), (5, 7)]
    reader.exchange()
    assert fetch(reader) == [0, 1, 3, 4, 7, 8]
    assert fetch(reader, reads="{[1,4),[6,9)}") == [1, 3, 7, 8]


def test_fetch__open_transaction_of_a_reader__holds_no_lock_on_claims(db):
    reader, taker = Reader(db), db.session()
    db.session().publish()
    reader.exchange()
    reader.session.begin()
    assert fetch(reader) == [0]
    taker.run("set lock_timeout = '500ms'")
    taker.run("update coordinator.claims set epoch = epoch + 1")
    reader.session.rollback()
