"""Whole numbers that a column takes: otherwise the driver sends a type that no function has, or a text that is no number."""

from coordinator.errors import InvalidInputError

_INT4 = 2**31 - 1
_INT8 = 2**63 - 1


def int4(name: str, value: object) -> int:
    """Return a whole number of 32 bits. Which of them make sense, the database says.

    Raises:
        InvalidInputError: It is none; neither are "1" and True.
    """
    return _integer(name, value, _INT4)


def int8(name: str, value: object) -> int:
    """`int4` with 64 bits."""
    return _integer(name, value, _INT8)


def _integer(name: str, value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -most - 1 <= value <= most:
        raise InvalidInputError(f"{name} is a whole number from {-most - 1} to {most}, found {value!r}")
    return value
