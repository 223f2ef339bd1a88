"""A SQL call as data, and exchanges of several calls as generators; both are run by `coordinator.db.drive`."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

# The name of the statement by which a flow begins a transaction: what follows runs in it, until the flow ends it.
BEGIN_NAME = "begin"

Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """One SQL statement, what goes in, and how to read what comes back.

    Attributes:
        name: For logs and traces; the name of the SQL function that the text calls.
        text: A constant that says `coordinator.` for the schema, with `%s` or `%(name)s` for parameters.
        parameters: A sequence for `%s`, a mapping for `%(name)s`, `()` if there are none; a lone `%` in the text is
            written `%%` in every case.
        parse: Gets all rows, in order, as tuples; none if the statement returns no rows.
    """

    name: str
    text: str
    parameters: Sequence[object] | Mapping[str, object]
    parse: Callable[[Sequence[Row]], T]


# Yields statements, is sent their parsed results, returns its own.
Flow: TypeAlias = Generator[Statement[Any], Any, T]


def call(statement: Statement[T]) -> Flow[T]:
    """Yield one statement and return its result, typed: a bare `yield` would give Any."""
    result: T = yield statement
    return result
