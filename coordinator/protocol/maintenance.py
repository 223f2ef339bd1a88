"""The functions of sql/functions/maintenance as data."""

from typing import NamedTuple

from coordinator.protocol.statement import Statement


class Maintained(NamedTuple):
    """What one round of maintenance did; `next_s`: in how many seconds to come again."""

    moved: int
    failed: int
    expired: int
    next_s: float


def maintain_publishing(limit: int) -> Statement[Maintained]:
    """Move what is due and delete expired dedup keys, up to `limit` of each, unless another process is at it."""
    return Statement(
        "maintain_publishing",
        "select m.moved, m.failed, m.expired, m.next_s from coordinator.maintain_publishing(%s) m",
        (limit,),
        lambda rows: Maintained(*rows[0]),
    )
