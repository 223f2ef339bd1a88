"""Sessions that are missed: who was without a lock at every look for long enough is gone."""

from coordinator.core.sessions import SESSION_GRACE_S, Sessions

A, B = ("a", 11), ("b", 12)


def test_session__missed_at_every_look_for_the_grace__is_gone():
    sessions = Sessions()
    assert sessions.on_look([A], 100.0) == {}
    assert sessions.on_look([A, B], 100.0 + SESSION_GRACE_S / 2) == {}
    assert sessions.on_look([A, B], 100.0 + SESSION_GRACE_S) == {"a": 11}


def test_session__back_at_one_look__is_missed_from_the_next_on():
    sessions = Sessions()
    sessions.on_look([A], 100.0)
    sessions.on_look([], 101.0)
    assert sessions.on_look([A], 102.5) == {}
    assert sessions.on_look([A], 102.5 + SESSION_GRACE_S) == {"a": 11}


def test_session__announced_anew_under_another_pid__is_another_session():
    sessions = Sessions()
    sessions.on_look([A], 100.0)
    assert sessions.on_look([("a", 99)], 103.0) == {}


def test_next_look__somebody_is_missed__comes_when_it_has_been_for_long_enough():
    sessions = Sessions()
    sessions.on_look([A], 100.0)
    assert sessions.next_look_s(16, 100.5, 1.0) == 100.0 + SESSION_GRACE_S
    # What could not be declared dead (a claim is locked) is tried again, and not in a busy loop.
    assert sessions.next_look_s(16, 105.0, 1.0) == 105.05


def test_next_look__a_fleet__looks_as_often_together_however_many_they_are():
    sessions = Sessions()
    assert sessions.next_look_s(4, 0.0, 1.0) == 0.5
    assert sessions.next_look_s(4, 0.0, 0.0) == 0.25
    assert sessions.next_look_s(100, 0.0, 1.0) == 2.0
    assert sessions.next_look_s(1, 0.0, 1.0) == 2.0
