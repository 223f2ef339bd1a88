"""Arguments that a column takes: otherwise the driver sends a type that no function has, or a text that is no number.

Each returns its value, or raises InvalidInputError: what was wanted, what was found, and its type where that is the matter.
Which of the values make sense, the database says, unless a bound is given here.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from coordinator.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

T = TypeVar("T")

_INT4 = 2**31 - 1
_INT8 = 2**63 - 1
_MOST = sys.float_info.max
_MAX_SHOWN_CHARS = 100


def int4(name: str, value: object, low: int = -_INT4 - 1, high: int = _INT4) -> int:
    """Return a whole number of 32 bits; neither "1" nor True is one."""
    return _integer(name, value, low, high)


def int8(name: str, value: object, low: int = -_INT8 - 1, high: int = _INT8) -> int:
    """`int4` with 64 bits."""
    return _integer(name, value, low, high)


def number(name: str, value: object, low: float, high: float = float("inf")) -> float:
    """Return a number that is one, and finite."""
    wanted = f"a number of at least {low:g}" if high == float("inf") else f"a number between {low:g} and {high:.15g}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong(name, wanted, value, typed=True)
    # NaN is neither below nor above; an int of hundreds of digits is no float.
    if not low <= value <= high or not -_MOST <= value <= _MOST:
        raise wrong(name, wanted, value)
    return value


def text(name: str, value: object) -> str:
    """Return a text that PostgreSQL can store."""
    if not isinstance(value, str):
        raise wrong(name, "a text", value, typed=True)
    if "\0" in value:
        raise wrong(name, "a text without NUL", value)
    if not value.isascii() and value.encode(errors="replace").decode() != value:
        raise wrong(name, "a text without lone surrogates, which have no UTF-8 form", value)
    return value


def flag(name: str, value: object) -> bool:
    """Return True or False; what is only taken for one may be the text "false"."""
    if not isinstance(value, bool):
        raise wrong(name, "True or False", value, typed=True)
    return value


def moment(name: str, value: Any) -> datetime:
    """Return a datetime with a time zone: without one it would be another moment on every machine."""
    # This package imports no clock, and so no datetime.
    if not hasattr(value, "tzinfo") or not hasattr(value, "year") or value.tzinfo is None:
        raise wrong(name, "a datetime with a time zone", value, typed=not hasattr(value, "tzinfo"))
    return value  # type: ignore[no-any-return]


def maybe(check: Callable[[str, object], T], name: str, value: object) -> T | None:
    """Check, unless it is None."""
    return None if value is None else check(name, value)


def each(check: Callable[[str, object], T], name: str, values: Any, wanted: str) -> list[T]:
    """Check each of several; one text is none of them, though it is a sequence of texts."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise wrong(name, wanted, values, typed=True)
    return [check(name, value) for value in values]


def wrong(name: str, wanted: str, value: object, *, typed: bool = False) -> InvalidInputError:
    """Return the error for an argument that is not what was wanted; `typed`: its type is what is wrong with it."""
    shown = repr(value)
    if len(shown) > _MAX_SHOWN_CHARS:
        shown = f"{shown[:_MAX_SHOWN_CHARS]}..."
    of_type = f", of type {type(value).__name__}" if typed and value is not None else ""
    return InvalidInputError(f"{name}: wanted {wanted}, found {shown}{of_type}")


def nearest(name: str, known: Collection[str]) -> str:
    """Return what to say of a name that there is not: the one that was meant, or all there are."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(known))}"


def no_group(group: str, known: Collection[str]) -> NotFoundError:
    """Return the error for a group that there is not."""
    close = get_close_matches(group, known, n=1)
    meant = f"Did you mean {close[0]}? " if close else ""
    return NotFoundError(f"there is no group {group!r}", hint=f"{meant}Those that exist: coordinator groups list")


def _integer(name: str, value: object, low: int, high: int) -> int:
    wanted = f"a whole number from {low} to {high}"
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(name, wanted, value, typed=True)
    if not low <= value <= high:
        raise wrong(name, wanted, value)
    return value
