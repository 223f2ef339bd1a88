"""Where a group starts: earliest, latest, and what latest does not get."""

from support.reader import Reader


def test_join_group__latest_on_an_empty_topic__starts_at_0(db):
    reader = Reader(db, start="latest")
    assert reader.committed == 0
    db.session().publish()
    assert reader.settle_down() == [0]


def test_join_group__latest__starts_behind_what_was_handed_out_and_skips_open_publishers(db):
    a, b = db.session().begin(), db.session()
    b.publish()
    a.publish()
    reader, all_of_it = Reader(db, start="latest"), Reader(db, start="earliest")
    assert reader.committed == 2
    b.publish()
    a.commit()
    # What an open publisher commits below the start is not its; what it publishes above is.
    assert reader.settle_down() == [2]
    assert all_of_it.settle_down() == [0, 1, 2]


def test_join_group__latest__publisher_goes_on_after_the_join__gets_the_later_ones(db):
    a = db.session().begin()
    a.publish()
    reader = Reader(db, start="latest")
    a.publish()
    a.commit()
    assert reader.settle_down() == [1]


def test_join_group__second_member_with_another_start__moves_nothing(db):
    db.session().publish()
    first = Reader(db, 0, "g")
    second = Reader(db, 1, "g", start="latest")
    assert second.committed == 0
    assert first.settle_down() == [0]
