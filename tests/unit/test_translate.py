"""psycopg's errors made by hand: what becomes which class, without a database."""

from types import SimpleNamespace

import psycopg
import psycopg_pool
import pytest

from coordinator.db.dsn import conninfo
from coordinator.db.translate import translate, translated
from coordinator.errors import (
    ConfigError,
    InvalidInputError,
    MemberDeadError,
    StaleEpochError,
    UnavailableError,
)


def error_of(sqlstate, *, detail=None, hint=None):
    """Make what psycopg raises for an answer of the server; its diag can't be made by hand."""
    fields = SimpleNamespace(sqlstate=sqlstate, message_primary="primary", message_detail=detail, message_hint=hint)
    kind = type(
        "ServerError", (psycopg.errors.lookup(sqlstate) if sqlstate[:2] != "KG" else psycopg.DatabaseError,), {}
    )
    kind.sqlstate = sqlstate
    kind.diag = property(lambda _self: fields)
    return kind("primary\nDETAIL: ...")


def test_translate__stale_epoch_with_json_detail__carries_both_epochs():
    ours = translate(error_of("KG001", detail='{"held": 4, "current": 5}', hint="rejoin"))
    assert type(ours) is StaleEpochError
    assert (str(ours), ours.held, ours.current, ours.hint) == ("primary", 4, 5, "rejoin")


@pytest.mark.parametrize(
    "detail", [None, "", "epoch 4", "[]", "7", "null", '{"held": 4}', '{"held": null, "current": 5}']
)
def test_translate__stale_epoch_with_other_detail__has_no_epochs(detail):
    ours = translate(error_of("KG001", detail=detail))
    assert type(ours) is StaleEpochError
    assert (ours.held, ours.current, ours.detail) == (None, None, detail)


def test_translate__own_sqlstate__keeps_message_detail_and_hint():
    ours = translate(error_of("KG002", detail="a", hint="b"))
    assert type(ours) is MemberDeadError
    assert (str(ours), ours.detail, ours.hint) == ("primary", "a", "b")


@pytest.mark.parametrize("sqlstate", ["40P01", "40001", "57014", "55P03", "23505", "22012"])
def test_translate__others_sqlstate__passes_through(sqlstate):
    assert translate(error_of(sqlstate)) is None


@pytest.mark.parametrize("sqlstate", ["57P01", "57P02", "57P03", "08006", "25P03", "53300"])
def test_translate__server_went_away__is_unavailable(sqlstate):
    assert type(translate(error_of(sqlstate))) is UnavailableError


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("the connection is closed"),
        psycopg.errors.ConnectionTimeout("connection timeout expired"),
        psycopg_pool.PoolTimeout("couldn't get a connection after 30 sec"),
    ],
)
def test_translate__no_sqlstate__is_unavailable(error):
    assert type(translate(error)) is UnavailableError


def test_translate__connection_closed__is_unavailable_whatever_the_error():
    assert type(translate(error_of("XX000"), SimpleNamespace(closed=True))) is UnavailableError
    assert translate(error_of("XX000"), SimpleNamespace(closed=False)) is None


def test_translate__psycopg_refuses_a_nul__is_invalid_input():
    assert type(translate(psycopg.DataError("cannot contain NUL"))) is InvalidInputError


def test_translate__mistake_of_ours__passes_through():
    assert translate(psycopg.ProgrammingError("the query has 1 placeholder but 0 parameters were passed")) is None
    assert translate(psycopg.errors.PipelineAborted("pipeline aborted")) is None


def test_translated__error_of_a_function_of_ours__is_told_once():
    theirs = error_of("KG002")
    with pytest.raises(MemberDeadError) as raised, translated():
        raise theirs
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    assert raised.value.__context__ is theirs


def test_translated__error_of_the_server__is_chained():
    theirs = error_of("57P01")
    with pytest.raises(UnavailableError) as raised, translated():
        raise theirs
    assert raised.value.__cause__ is theirs


def test_translated__error_that_passes__comes_out_as_it_is():
    theirs = error_of("40001")
    with pytest.raises(psycopg.errors.SerializationFailure) as raised, translated():
        raise theirs
    assert raised.value is theirs


@pytest.mark.parametrize(
    ("dsn", "understood"),
    [
        ("", ""),
        ("host=/tmp dbname=a", "host=/tmp dbname=a"),
        ("postgresql://u:p%40@h:5433/d?sslmode=require", "postgresql://u:p%40@h:5433/d?sslmode=require"),
        ("postgresql+psycopg://u@h/d", "postgresql://u@h/d"),
        ("postgresql+asyncpg://u@h/d", "postgresql://u@h/d"),
        ("postgres://u@h/d", "postgresql://u@h/d"),
    ],
)
def test_conninfo__known_form__is_made_libpqs(dsn, understood):
    assert conninfo(dsn) == understood


@pytest.mark.parametrize("dsn", ["mysql://u:secret@h/d", "secret", "host=a secret=b"])
def test_conninfo__unknown_form__is_refused_without_quoting_it(dsn):
    with pytest.raises(ConfigError) as raised:
        conninfo(dsn)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None
