"""psycopg.Error -> errors.py, by SQLSTATE and never by message text."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from coordinator.errors import (
    CoordinatorError,
    DeniedError,
    InvalidInputError,
    StaleEpochError,
    UnavailableError,
    class_of,
)
from coordinator.observe.meter import METER

_DENIED_HINT = (
    "The schema's owner can give a role what it needs: "
    "coordinator db grants --role publisher|consumer|reader|operator --to ROLE"
)


def translate(error: psycopg.Error, connection: psycopg.BaseConnection[Any] | None = None) -> CoordinatorError | None:
    """Return our error for one of psycopg's, with its message, DETAIL and HINT; None if it passes through as it is.

    Deadlock (40P01), serialization failure (40001), cancel and timeout (57014) pass through: what they mean is for
    the owner of the transaction to decide.

    Args:
        error: What psycopg raised; the caller chains it: `raise ours from cause_of(error)`.
        connection: Where it was raised, if there is one: once that is closed, any error means "unavailable".
    """
    diag = error.diag
    if not getattr(error, "counted", False):
        # What passes through as it is may come by here again.
        error.counted = True  # type: ignore[attr-defined]
        METER.database_error(error.sqlstate)
    # Without a server's answer there is no primary message; str(error) has libpq's.
    message = diag.message_primary or str(error).strip()
    kind = class_of(error.sqlstate) if error.sqlstate else None
    if kind is StaleEpochError:
        held, current = _epochs(diag.message_detail)
        return StaleEpochError(message, held=held, current=current, detail=diag.message_detail, hint=diag.message_hint)
    if kind is None and _connection_lost(error, connection):
        kind = UnavailableError
    if kind is None and error.sqlstate is None and isinstance(error, psycopg.DataError):
        kind = InvalidInputError  # psycopg itself refused a parameter: a NUL in a text
    hint = diag.message_hint or (_DENIED_HINT if kind is DeniedError else None)
    return kind(message, detail=diag.message_detail, hint=hint) if kind else None


def cause_of(error: BaseException) -> BaseException | None:
    """Return what our error for this one is raised from; nothing where a function of ours has raised it: ours says all of it."""
    return None if (getattr(error, "sqlstate", None) or "").startswith("KG") else error


@contextmanager
def translated(connection: psycopg.BaseConnection[Any] | None = None) -> Iterator[None]:
    """Raise our errors for psycopg's in the body, which may await; for what is no Statement: connect, commit."""
    try:
        yield
    except psycopg.Error as error:
        ours = translate(error, connection)
        if ours is None:
            raise
        raise ours from cause_of(error)


def _connection_lost(error: psycopg.Error, connection: psycopg.BaseConnection[Any] | None) -> bool:
    if connection is not None and connection.closed:
        return True
    # libpq's own failures have no SQLSTATE: refused, reset, timed out, closed. PipelineAborted has none either, but it
    # only follows an error that was told before.
    return (
        error.sqlstate is None
        and isinstance(error, psycopg.OperationalError)
        and not isinstance(error, psycopg.errors.PipelineAborted)
    )


def _epochs(detail: str | None) -> tuple[int | None, int | None]:
    """Read held and current from {"held": 4, "current": 5}; a foreign function may have written something else."""
    try:
        epochs = json.loads(detail or "")
        return int(epochs["held"]), int(epochs["current"])
    except (ValueError, TypeError, KeyError):
        return None, None
