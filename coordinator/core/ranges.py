"""Arithmetic of offset ranges [lo, hi): ascending, disjoint, never touching, never empty."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]


def compress(offsets: Iterable[int]) -> list[Range]:
    """Return the ranges that cover just these offsets; any order, repeats allowed. Cost: O(n log n), n if ascending."""
    ranges: list[Range] = []
    ordered = iter(sorted(offsets))
    first = next(ordered, None)
    if first is None:
        return ranges
    lo, hi = first, first + 1
    for offset in ordered:
        if offset == hi:
            hi += 1
        elif offset > hi:
            ranges.append((lo, hi))
            lo, hi = offset, offset + 1
    ranges.append((lo, hi))
    return ranges


def merge(*parts: Sequence[Range]) -> list[Range]:
    """Return the union of range lists, normalised."""
    merged: list[Range] = []
    for lo, hi in sorted(pair for part in parts for pair in part):
        if merged and lo <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
        else:
            merged.append((lo, hi))
    return merged


def subtract(window: Range, taken: Sequence[Range]) -> Iterator[Range]:
    """Yield what of a window is left when the (normalised) ranges are taken out."""
    lo, hi = window
    for taken_lo, taken_hi in taken:
        if taken_hi <= lo:
            continue
        if taken_lo >= hi:
            break
        if taken_lo > lo:
            yield lo, taken_lo
        lo = max(lo, taken_hi)
    if lo < hi:
        yield lo, hi


def contains(ranges: Sequence[Range], offset: int) -> bool:
    """Tell whether an offset is in one of the ranges. Cost: O(n); the lists here have a few entries."""
    return any(lo <= offset < hi for lo, hi in ranges)


def size(ranges: Iterable[Range]) -> int:
    """Return how many offsets the ranges hold."""
    return sum(hi - lo for lo, hi in ranges)


def to_text(ranges: Iterable[Range]) -> str:
    """Return the int8multirange literal, `{}` for none."""
    return "{" + ",".join([f"[{lo},{hi})" for lo, hi in ranges]) + "}"


def from_text(text: str) -> tuple[Range, ...]:
    """Parse PostgreSQL's canonical text of a bounded int8multirange."""
    if text == "{}":
        return ()
    bounds = [part.split(",") for part in text[2:-2].split("),[")]
    return tuple((int(lo), int(hi)) for lo, hi in bounds)
