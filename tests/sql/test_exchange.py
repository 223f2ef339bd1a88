"""The fence of an exchange: ok, idle, fenced, busy and stale, claim by claim."""

import pytest
from support.reader import Reader
from support.schedules import fails


def exchange_both(db, reader, epochs, seqs, settled=("{}", "{}")):
    session = db.session()
    return session.run(
        "select e.status, e.committed, e.hwm from coordinator.exchange("
        "%s, array[%s, %s]::int[], array[1, 1], array[0, 1], %s::bigint[], %s::bigint[], array[0, 0]::bigint[], %s::text[], "
        "array[10, 10]) e",
        reader.id,
        reader.group_id,
        reader.group_id,
        list(epochs),
        list(seqs),
        list(settled),
    )


@pytest.fixture
def owner(db):
    """A reader that holds both partitions under epoch 1, with a message in each."""
    made = Reader(db)
    made.session.run("select coordinator.claim(%s, array[%s::int], '{1}', '{1}')", made.id, made.group_id)
    db.session().publish(partition=0)
    db.session().publish(partition=1)
    return made


def test_exchange__both_claims_held__both_windows_are_raised(db, owner):
    assert exchange_both(db, owner, (1, 1), (1, 1)) == [("ok", 0, 1), ("ok", 0, 1)]


def test_exchange__one_claim_is_locked__is_busy_and_the_other_succeeds(db, owner):
    blocker = db.session().begin()
    blocker.run("select from coordinator.claims c where c.partition = 0 for update")
    assert exchange_both(db, owner, (1, 1), (1, 1)) == [("busy", None, None), ("ok", 0, 1)]
    blocker.rollback()
    assert exchange_both(db, owner, (1, 1), (1, 2))[0] == ("ok", 0, 1)


def test_exchange__transactional_ack_holds_key_share__is_not_busy(db, owner):
    handler = db.session().begin()
    handler.run("select from coordinator.claims c for key share")
    assert [row[0] for row in exchange_both(db, owner, (1, 1), (1, 1))] == ["ok", "ok"]


@pytest.mark.parametrize("epoch", [0, 2])
def test_exchange__another_epoch__is_fenced_and_writes_nothing(db, owner, epoch):
    assert exchange_both(db, owner, (epoch, 1), (1, 1), ("{[0,1)}", "{}")) == [("fenced", None, None), ("ok", 0, 1)]
    assert db.observer.one("select max(p.seq) from coordinator.progress p where p.partition = 0") == 1


def test_exchange__old_or_future_seq__is_stale_and_writes_nothing(db, owner):
    assert exchange_both(db, owner, (1, 1), (0, 2), ("{[0,1)}", "{}")) == [("stale", None, None), ("stale", None, None)]
    assert db.observer.one("select max(p.seq) from coordinator.progress p") == 1


def test_exchange__another_coordinator__is_fenced(db, owner):
    other = Reader(db, 0, "another")
    other.group_id = owner.group_id
    assert [row[0] for row in exchange_both(db, other, (1, 1), (1, 1))] == ["fenced", "fenced"]


def test_exchange__claim_is_gone__is_fenced(db, owner):
    db.observer.run("delete from coordinator.claims c where c.partition = 0")
    assert [row[0] for row in exchange_both(db, owner, (1, 1), (1, 1))] == ["fenced", "ok"]


def test_exchange__nothing_to_settle_or_fetch__is_idle_and_writes_nothing(db):
    reader = Reader(db)
    before = db.observer.one("select count(*) from coordinator.progress")
    assert reader.exchange() == "idle"
    assert db.observer.one("select count(*) from coordinator.progress") == before


def test_exchange__window__ends_at_v_and_never_shrinks(db):
    reader, b = Reader(db, want=3), db.session()
    for _ in range(5):
        b.publish()
    reader.exchange()
    assert reader.hwm == 3
    reader.exchange()
    assert reader.hwm == 5
    reader.exchange()
    assert reader.hwm == 5


def test_exchange__settled_beyond_the_window__is_cut(db, owner):
    exchange_both(db, owner, (1, 1), (1, 1))
    assert exchange_both(db, owner, (1, 1), (2, 2), ("{[0,100)}", "{[0,1)}")) == [("ok", 1, 1), ("ok", 1, 1)]


def test_exchange__takeover_commits_while_it_waits__is_fenced(db, owner):
    # It skips locked rows, so it never waits; the row it sees free was changed after its snapshot.
    taker = db.session().begin()
    taker.run("select coordinator.claim(%s, array[%s::int], '{1}', '{0}')", owner.id, owner.group_id)
    assert exchange_both(db, owner, (1, 1), (1, 1))[0][0] == "busy"
    taker.commit()
    assert exchange_both(db, owner, (1, 1), (1, 2))[0][0] == "fenced"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_exchange__at_another_isolation_level__is_refused(db, owner, isolation):
    session = db.session().begin(isolation)
    error = fails(session, "select coordinator.exchange(%s, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')", owner.id)
    assert error.sqlstate == "KG007"
