"""The functions of sql/functions/deliveries as data: what one round trip of an exchange is made of."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from coordinator.core.ranges import Range, from_text, to_text
from coordinator.model import Due, Facts, GapEvidence, Parked, PartitionKey, Resolved, Row, Settled
from coordinator.protocol.statement import Row as AnyRow
from coordinator.protocol.statement import Statement
from coordinator.protocol.text import array, quoted_array

BEGIN = "begin isolation level read committed read write"
COMMIT = "commit"
LIMITS = "select coordinator.limit_session()"
# For what a caller waits for: a large batch, a topic with many partitions, a dedup key in somebody's open transaction.
CALLERS_LIMITS = "select coordinator.limit_session(60000, 30000, 5000)"
EXCHANGE = (
    "select e.ord, e.status, e.seq, e.committed, e.hwm, e.high, e.holes, e.refused, e.refusal "
    "from coordinator.exchange(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) e"
)
DUE = "select d.ord, d.due_in_s from coordinator.dispatch_due(%s, %s, %s, %s, %s, %s, %s) d"
PARKED = (
    'select p.ord, p."offset", p.published_at, p.message_id, p.key, p.headers, p.content_type, p.payload, '
    "p.fails, p.crashes, p.alone, p.replays from coordinator.fetch_retries(%s, %s, %s, %s, %s) p"
)
RELEASE = "select coordinator.release(%s, %s, %s, %s, %s)"
FETCH = (
    'select f.ord, f."offset", f.published_at, f.message_id, f.key, f.headers, f.content_type, f.payload '
    "from coordinator.fetch(%s, %s, %s, %s, %s) f"
)
GAP_PASS = (
    'select g.ord, g.high, g.holders, g."offset", g.published_at, g.message_id, g.key, g.headers, g.content_type, '
    "g.payload from coordinator.gap_pass(%s, %s, %s) g"
)


@dataclass(slots=True)
class ClaimArrays:
    """The parallel arrays that name claims, as literals."""

    groups: str
    topics: str
    partitions: str
    epochs: str

    @classmethod
    def of(cls, claims: Sequence[tuple[PartitionKey, int]]) -> "ClaimArrays":
        return cls(
            array(key.group_id for key, _ in claims),
            array(key.topic_id for key, _ in claims),
            array(key.partition for key, _ in claims),
            array(epoch for _, epoch in claims),
        )


@dataclass(slots=True)
class ExchangeCall:
    """One round trip: `settle` goes into the first transaction, `fetch` and `gaps` are reads behind it."""

    settle: tuple[object, ...]
    release: tuple[object, ...] | None = None
    fetch: tuple[object, ...] | None = None
    gaps: tuple[object, ...] | None = None
    due: tuple[object, ...] | None = None
    parked: tuple[object, ...] | None = None


@dataclass(slots=True)
class ExchangeAnswer:
    """What came back: rows are in offset order per claim; `rows[i].ord` counts the fetch's entries from 1."""

    settled: list[Settled]
    released: int
    rows: list[Row]
    gaps: dict[int, GapEvidence]
    due: list[Due]
    parked: list[Parked]


def settle_parameters(
    coordinator: UUID,
    claims: ClaimArrays,
    progress: Sequence[tuple[int, int]],
    settled: Sequence[Sequence[Range]],
    wants: Sequence[int],
    hard: Sequence[Mapping[str, object]],
) -> tuple[object, ...]:
    """Parameters of EXCHANGE; `progress` is (seq, hwm) per claim as the caller knows it."""
    return (
        str(coordinator),
        claims.groups,
        claims.topics,
        claims.partitions,
        claims.epochs,
        array(seq for seq, _ in progress),
        array(hwm for _, hwm in progress),
        quoted_array(map(to_text, settled)),
        array(wants),
        json.dumps(hard) if hard else None,
    )


def fetch_parameters(claims: ClaimArrays, positions: Sequence[int]) -> tuple[object, ...]:
    """Parameters of FETCH: everything from the position of each claim on, as far as its window is committed."""
    return (
        claims.groups,
        claims.topics,
        claims.partitions,
        claims.epochs,
        quoted_array(f"{{[{position},)}}" for position in positions),
    )


def gap_parameters(partitions: Sequence[tuple[int, int]], gaps: Sequence[Sequence[Range]]) -> tuple[object, ...]:
    """Parameters of GAP_PASS; `partitions` holds (topic id, partition)."""
    return (
        array(topic_id for topic_id, _ in partitions),
        array(partition for _, partition in partitions),
        quoted_array(map(to_text, gaps)),
    )


def due_parameters(
    coordinator: UUID, claims: ClaimArrays, limits: Sequence[int], ages_s: Sequence[float | None] = ()
) -> tuple[object, ...]:
    """Parameters of DUE; `limits` is how many parked messages may be handed out per claim.

    ages_s: What became due longer ago is not looked at; None, or nothing, looks at all.
    """
    # No nulls: array_nulls may be off, as a default of the database.
    ages = "{" + ",".join("-1" if age_s is None else f"{age_s:.3f}" for age_s in ages_s) + "}"
    return (str(coordinator), claims.groups, claims.topics, claims.partitions, claims.epochs, array(limits), ages)


def parked_parameters(claims: ClaimArrays, held: Sequence[Sequence[Range]]) -> tuple[object, ...]:
    """Parameters of PARKED; `held` is what the caller has of what was handed out."""
    return (claims.groups, claims.topics, claims.partitions, claims.epochs, quoted_array(map(to_text, held)))


def parse_parked(rows: Sequence[AnyRow]) -> list[Parked]:
    """Split rows of PARKED into message and facts."""
    return [Parked(Row(*row[:8]), Facts(*row[8:])) for row in rows]


def release_parameters(coordinator: UUID, claims: ClaimArrays) -> tuple[object, ...]:
    """Parameters of RELEASE."""
    return (str(coordinator), claims.groups, claims.topics, claims.partitions, claims.epochs)


def parse_gaps(rows: Sequence[AnyRow]) -> dict[int, GapEvidence]:
    """Sort the answer of GAP_PASS by entry."""
    evidence: dict[int, GapEvidence] = {}
    for row in rows:
        entry = evidence.setdefault(row[0], GapEvidence())
        if row[1] is not None:
            entry.high, entry.holders = row[1], tuple(row[2])
        else:
            entry.rows.append(Row(row[0], *row[3:]))
    return evidence


def resolve(coordinator: UUID, claims: ClaimArrays) -> Statement[list[Resolved]]:
    """The newest progress of claims, once whatever of ours is still committing has ended; in order of the claims."""
    return Statement(
        "resolve",
        "select r.ord, r.status, r.seq, r.committed, r.hwm, r.done, r.acked from coordinator.resolve(%s, %s, %s, %s, %s) r",
        (str(coordinator), claims.groups, claims.topics, claims.partitions, claims.epochs),
        lambda rows: [
            Resolved(
                row[1], row[2] or 0, row[3] or 0, row[4] or 0, from_text(row[5] or "{}"), from_text(row[6] or "{}")
            )
            for row in rows
        ],
    )


# When the transaction began, in microseconds: this tells it from one that a statement of the handler's has begun in its place.
_BEGAN = "(extract(epoch from pg_catalog.now()) * 1000000)::bigint"


class Begun(NamedTuple):
    """A handler's transaction when it has begun: when, in microseconds since 1970, and in which history of the database."""

    began_us: int
    history: str | None


def ack(
    coordinator: UUID,
    key: PartitionKey,
    epoch: int,
    offsets: Sequence[int],
    replays: Sequence[int],
    began_us: int | None = None,
) -> Statement[str | None]:
    """Ack in the handler's transaction, as its last statement; returns the transaction's id.

    None, and nothing was acked, in another transaction than the one that began at `began_us`.
    """
    return Statement(
        "ack",
        f"select case when coalesce(%s::bigint = {_BEGAN}, true) then coordinator.ack(%s, %s, %s, %s, %s, %s, %s) end",
        (began_us, str(coordinator), key.group_id, key.topic_id, key.partition, epoch, array(offsets), array(replays)),
        lambda rows: rows[0][0],
    )


def limit_idle(limit_s: float) -> Statement[Begun]:
    """End this transaction when it is idle for so long; returns when it has begun, and the database's `history`."""
    return Statement(
        "limit_idle",
        f"select set_config('idle_in_transaction_session_timeout', %s, true), {_BEGAN}, coordinator.history()",
        (str(int(limit_s * 1000)),),
        lambda rows: Begun(rows[0][1], rows[0][2]),
    )


def ack_kept(key: PartitionKey, epoch: int, offset: int, replay: int) -> Statement[bool]:
    """Tell whether an ack of a handler's transaction is there; to be asked behind its outcome, in a statement of its own."""
    return Statement(
        "ack_kept",
        "select coordinator.ack_kept(%s, %s, %s, %s, %s, %s)",
        (key.group_id, key.topic_id, key.partition, epoch, offset, replay),
        lambda rows: bool(rows[0][0]),
    )


OTHER_HISTORY = "other history"


def transaction_outcome(xid: str, history: str | None) -> Statement[str | None]:
    """committed, aborted, in progress, or None for too long ago; "other history": there its number may be another's."""
    return Statement(
        "transaction_outcome",
        "select case when coordinator.history() <> %s::text then %s::text else coordinator.transaction_outcome(%s) end",
        (history, OTHER_HISTORY, xid),
        lambda rows: rows[0][0],
    )
