"""The error tree and its table, and both against the SQL files."""

import copy
import pickle
import re
import traceback
from pathlib import Path

import pytest

from coordinator import errors
from coordinator.errors import CLASS_BY_SQLSTATE, CoordinatorError, StaleEpochError, UnavailableError, class_of

ROOT = Path(__file__).parents[2]
# What a handler raises to say what should happen: no errors of ours, so that `except CoordinatorError` lets them pass.
ANSWERS = (errors.Retry, errors.Reject)
CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind not in ANSWERS]
# In the table for what is to come: rights per topic.
RESERVED = {"KG008"}
CODES_IN_SQL = {
    code for path in (ROOT / "sql").rglob("*.sql") for code in re.findall(r"'(KG\d\d\d)'", path.read_text("utf-8"))
}
OUR_CODES = {code for code in CLASS_BY_SQLSTATE if code.startswith("KG")}


@pytest.mark.parametrize("kind", CLASSES)
def test_error__pickled_or_copied__keeps_its_facts(kind):
    error = kind("message", detail="detail", hint="hint")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), again.detail, again.hint) == ("message", "detail", "hint")


@pytest.mark.parametrize(
    ("answer", "facts"),
    [
        (errors.Retry(), {"delay_s": None}),
        (errors.Retry(2.5, "the bank is closed"), {"delay_s": 2.5}),
        (errors.Reject(), {"reason": "rejected by the handler"}),
        (errors.Reject("no such customer"), {"reason": "no such customer"}),
    ],
)
def test_answer__pickled_or_copied__keeps_its_facts(answer, facts):
    for again in (pickle.loads(pickle.dumps(answer)), copy.copy(answer)):
        assert type(again) is type(answer)
        assert (str(again), vars(again)) == (str(answer), facts)


@pytest.mark.parametrize("kind", ANSWERS)
def test_answer__every_class__says_what_to_do_and_is_no_error_of_ours(kind):
    assert not issubclass(kind, CoordinatorError)
    assert kind.__doc__


def test_stale_epoch__pickled__keeps_the_epochs():
    error = pickle.loads(pickle.dumps(StaleEpochError("message", held=4, current=5)))
    assert (error.held, error.current) == (4, 5)


@pytest.mark.parametrize("kind", CLASSES)
def test_error__every_class__is_ours_and_says_what_to_do(kind):
    assert issubclass(kind, CoordinatorError)
    assert kind.__doc__


def test_invalid_input__is_a_value_error():
    assert issubclass(errors.InvalidInputError, ValueError)
    assert issubclass(errors.MessageTooLargeError, errors.InvalidInputError)


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("KG001", StaleEpochError),
        ("KG006", errors.MessageTooLargeError),
        ("08006", UnavailableError),
        ("08P01", UnavailableError),
        ("57P01", UnavailableError),
        ("42501", errors.DeniedError),
        ("40P01", None),
        ("40001", None),
        ("57014", None),
        ("57P04", None),
        ("23505", None),
        ("KG999", None),
    ],
)
def test_class_of__sqlstate__gives_the_class_or_none(sqlstate, kind):
    assert class_of(sqlstate) is kind


def test_sqlstates__raised_in_sql__are_in_the_table():
    # KG000 never leaves the function that raises it: by it, row locks are given back.
    assert sorted(CODES_IN_SQL - OUR_CODES - {"KG000"}) == []


def test_sqlstates__in_the_table__are_raised_in_sql():
    assert OUR_CODES - CODES_IN_SQL <= RESERVED


def test_error__detail_and_hint__are_in_its_traceback():
    error = errors.NotFoundError("there is no topic 'x'", detail="asked at noon", hint="make it")
    shown = "".join(traceback.format_exception(error))
    assert "there is no topic 'x'\nasked at noon\nhint: make it" in shown
    assert str(error) == "there is no topic 'x'"
    again = pickle.loads(pickle.dumps(error))
    assert again.__notes__ == error.__notes__ == ["asked at noon", "hint: make it"]
