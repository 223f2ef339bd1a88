"""What a failed attempt means, and what is kept of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.retry import MAX_DELAY_S, DeadLetter, Exponential, Redeliver, RetryPolicy, clean, decide
from coordinator.errors import ConfigError, Reject, Retry


def decided(policy, error=None, attempt=1, fails=0, own=None, jitter=1.0):
    return decide(policy, error, attempt, fails, own, jitter)


def test_delay__default__doubles_from_one_second_up_to_five_minutes():
    policy = RetryPolicy()
    assert [policy.delay_s(attempt, 1.0) for attempt in range(1, 12)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_delay__any_attempt_and_jitter__lies_between_half_and_all_of_the_backoff(attempt, jitter):
    whole = Exponential()(attempt)
    assert whole / 2 <= RetryPolicy().delay_s(attempt, jitter) <= whole <= 300


def test_delay__list__repeats_its_last_entry_without_jitter():
    policy = RetryPolicy(delays=[0, 5, 60])
    assert [policy.delay_s(attempt, 0.0) for attempt in (1, 2, 3, 4, 99)] == [0, 5, 60, 60, 60]


def test_delay__callable__is_asked_with_the_attempt_and_never_negative():
    policy = RetryPolicy(delays=lambda attempt: attempt - 2)
    assert [decided(policy, attempt=attempt) for attempt in (1, 2, 3)] == [Redeliver(0), Redeliver(0), Redeliver(1)]


@pytest.mark.parametrize("found", [float("nan"), None, "soon"])
def test_delay__callable_that_finds_no_number__is_that_of_the_default(found):
    assert decided(RetryPolicy(delays=lambda _: found), attempt=3) == Redeliver(4)
    assert decided(RetryPolicy(), Retry(float("nan")), attempt=3) == Redeliver(4)


def test_delay__longer_than_the_database_can_add__is_a_year():
    assert decided(RetryPolicy(), Retry(float("inf"))) == Redeliver(MAX_DELAY_S)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_crashes": 0},
        {"delays": []},
        {"delays": [1, -1]},
        {"on": {ValueError: "ignore"}},
        {"on": {ValueError: -1}},
    ],
)
def test_policy__wrong_value__is_refused_where_it_is_made(wrong):
    with pytest.raises(ConfigError):
        RetryPolicy(**wrong)


def test_decide__budget__counts_failures_and_not_crashes():
    policy = RetryPolicy(max_attempts=3)
    assert isinstance(decided(policy, attempt=9, fails=1), Redeliver)
    assert decided(policy, attempt=3, fails=2) == DeadLetter("attempts")


def test_decide__own_budget_of_the_message__outranks_the_policy():
    policy = RetryPolicy(max_attempts=3)
    assert decided(policy, fails=0, own=1) == DeadLetter("attempts")
    assert isinstance(decided(policy, fails=8, own=10), Redeliver)


def test_decide__exceptions__the_nearest_class_says_what_happens():
    policy = RetryPolicy(on={Exception: "retry", ArithmeticError: 7, ZeroDivisionError: "reject"}, delays=[3])
    assert decided(policy, ZeroDivisionError()) == DeadLetter("rejected")
    assert decided(policy, OverflowError()) == Redeliver(7.0)
    assert decided(policy, KeyError()) == Redeliver(3.0)
    assert decided(policy, KeyboardInterrupt()) == Redeliver(3.0)


def test_decide__delay_of_an_exception__ends_with_the_budget_all_the_same():
    assert decided(RetryPolicy(max_attempts=1, on={ValueError: 7}), ValueError()) == DeadLetter("attempts")


def test_decide__retry_raised__takes_its_delay_or_the_policys():
    policy = RetryPolicy(delays=[3])
    assert decided(policy, Retry(11)) == Redeliver(11)
    assert decided(policy, Retry(-1)) == Redeliver(0)
    assert decided(policy, Retry()) == Redeliver(3)
    assert decided(RetryPolicy(max_attempts=1), Retry(11)) == DeadLetter("attempts")


def test_decide__reject_raised__is_a_dead_letter_at_once():
    assert decided(RetryPolicy(), Reject("broken")) == DeadLetter("rejected")


@given(st.text(st.characters(codec=None), max_size=300), st.integers(20, 100))
def test_clean__any_text__can_be_stored_and_is_cut(text, most):
    stored = clean(text, most)
    assert len(stored) <= most
    assert "\0" not in stored
    stored.encode("utf-8")


def test_clean__surrogates_and_nul__are_replaced_and_the_rest_is_kept():
    assert clean("a\0b\ud800c", 100) == "a\ufffdb?c"
    assert clean("x" * 50 + "y" * 50, 25) == "x" * 10 + " ... " + "y" * 10
