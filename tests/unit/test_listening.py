"""What a coordinator thinks of its listener, its connections and its loops."""

from uuid import UUID

import pytest

from coordinator.cli import exits
from coordinator.consumer.listening import CHECK_EVERY_S, ListenCheck, problems_of
from coordinator.consumer.pacing import Restarts
from coordinator.errors import LoopFailedError, UnavailableError


def listening(now_s=0.0):
    check = ListenCheck(UUID(int=1))
    check.begin(now_s)
    return check


def test_listen_check__heard__is_asked_again_after_a_while():
    check = listening()
    assert check.wake_ups == "checking"
    assert check.ask(0.0)
    assert check.wanted
    assert not check.ask(0.1), "asked once"
    check.sending()
    check.sent(0.2)
    check.heard(0.3)
    assert check.wake_ups == "listen"
    assert check.next_s() == 0.3 + CHECK_EVERY_S
    assert check.ask(0.3 + CHECK_EVERY_S)


def test_listen_check__heard_before_its_sender_knows_of_the_commit__is_no_miss():
    check = listening()
    check.ask(0.0)
    check.sending()
    check.heard(0.1)
    check.sent(0.2)
    assert not check.ask(10.0)
    assert check.wake_ups == "listen"


def test_listen_check__not_heard__wants_another_session_once_and_then_says_deaf():
    check = listening()
    check.ask(0.0)
    check.sending()
    check.sent(0.0)
    assert check.next_s() == 5.0
    with pytest.raises(UnavailableError):
        check.ask(5.0)
    check.begin(6.0)
    check.ask(6.0)
    check.sending()
    check.sent(6.0)
    assert not check.ask(11.0)
    assert check.wake_ups == "deaf"
    assert check.ask(11.0 + CHECK_EVERY_S), "looked at again"
    check.sending()
    check.sent(30.0)
    check.heard(30.1)
    assert check.wake_ups == "listen"


def test_listen_check__work_loop_has_no_connection__judges_nothing():
    check = listening()
    check.ask(0.0)
    assert check.next_s() == float("inf")
    assert not check.ask(1000.0)
    assert check.wake_ups == "checking"


def test_listen_check__not_wanted__polls():
    assert ListenCheck(UUID(int=1)).wake_ups == "poll"
    assert not ListenCheck(UUID(int=1)).ask(1000.0)


def test_problems__each_is_named_and_none_where_all_is_well():
    assert problems_of({}, 0.5, 10.0, None, 5.0) == ()
    found = problems_of({"work": 1.0, "control": 2.0}, 4.0, 3.0, RuntimeError("bug"), 5.0)
    assert [word in line for word, line in zip(("control", "work", "answered", "lease", "bug"), found, strict=True)]


def test_restarts__three_within_a_minute_and_no_more():
    restarts = Restarts()
    assert [restarts.allow(now_s) for now_s in (0, 1, 2, 3)] == [True, True, True, False]
    assert restarts.allow(100)


def test_loop_failed__at_the_shell__is_a_failure():
    assert exits.code_of(LoopFailedError("x")) == exits.FAILED
