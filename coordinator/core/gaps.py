"""The proof that a missing offset was rolled back: passes of evidence over gaps, see design of the reader.

A gap is an offset at or below V without a visible row. It is either still uncommitted, or burnt. H(g) is the set of open
publishers of the first pass that began after g was seen missing and whose V was at or above g; later passes only intersect
it. When it is empty, and the row was not visible in that same pass, nobody can commit g any more.

Evidence is void after a reconnect: a prepared transaction gets another name when the server restarts. Behind a pooler a
restart shows no reconnect; so who bears such a name is never left out by intersecting.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from coordinator.core.ranges import Range, compress, merge, subtract

# Of the names that PostgreSQL gives to transactions which were prepared before it started: no backend's number is -1.
_RECOVERED = "-1/"


@dataclass(slots=True)
class _Gap:
    lo: int
    hi: int
    # H(g); None while no pass has counted for it.
    holders: frozenset[str] | None = None


class Gaps:
    """The unresolved gaps of one claim, in offset order."""

    __slots__ = ("_gaps",)

    def __init__(self) -> None:
        self._gaps: list[_Gap] = []

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def __len__(self) -> int:
        """How many runs of missing offsets there are."""
        return len(self._gaps)

    @property
    def first(self) -> int | None:
        """The stable offset: the first offset of an unresolved gap."""
        return self._gaps[0].lo if self._gaps else None

    @property
    def size(self) -> int:
        return sum(gap.hi - gap.lo for gap in self._gaps)

    def ranges(self) -> list[Range]:
        """The gaps that the next pass has to look at."""
        return merge([(gap.lo, gap.hi) for gap in self._gaps])

    def note(self, missing: Iterable[Range]) -> None:
        """Take in ranges that a read covered completely and found no row in; not known before."""
        for lo, hi in missing:
            insort(self._gaps, _Gap(lo, hi), key=lambda gap: gap.lo)

    def on_pass(
        self, asked: Sequence[Range], high: int, holders: Collection[str], appeared: Iterable[int]
    ) -> list[Range]:
        """Weigh one pass and return what it proved burnt.

        Args:
            asked: What `ranges` said before the pass began; gaps noted since are left alone.
            high: V of the pass, read first.
            holders: Open publishers of the partition, read second, named by virtual transaction.
            appeared: Offsets that were visible, read last; they are no gaps any more.
        """
        visible = compress(appeared)
        open_now = frozenset(holders)
        recovered = frozenset(holder for holder in holders if holder.startswith(_RECOVERED))
        burnt: list[Range] = []
        left: list[_Gap] = []
        for gap in self._gaps:
            if not any(lo <= gap.lo and gap.hi <= hi for lo, hi in asked):
                left.append(gap)
                continue
            if gap.hi - 1 > high:
                still: frozenset[str] | None = gap.holders
            else:
                still = open_now if gap.holders is None else gap.holders & open_now | recovered
            for lo, hi in subtract((gap.lo, gap.hi), visible):
                if still is not None and not still:
                    burnt.append((lo, hi))
                else:
                    left.append(_Gap(lo, hi, still))
        self._gaps = left
        return burnt

    def void(self) -> None:
        """Forget the evidence, not the gaps: the connection that it was read on is gone."""
        for gap in self._gaps:
            gap.holders = None
