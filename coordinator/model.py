"""What is published and handed over, and the names for it: frozen values, no I/O."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, NewType, NoReturn, Protocol, Self
from uuid import UUID

Offset = NewType("Offset", int)
Epoch = NewType("Epoch", int)
CoordinatorId = NewType("CoordinatorId", UUID)

CORRELATION_HEADER = "correlation-id"
TRACE_HEADER = "traceparent"
JSON_CONTENT = "application/json"
BYTES_CONTENT = "application/octet-stream"


# From where PostgreSQL counts the microseconds of a time.
_WIRE_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class PartitionKey(NamedTuple):
    """Names one claim: what a group owns of a topic."""

    group_id: int
    topic_id: int
    partition: int


class Row(NamedTuple):
    """A message as the fetch reads it; `ord` is the place of its claim in the request, counted from 1.

    published_at and message_id may be in their wire form, which Message decodes.
    """

    ord: int
    offset: int
    published_at: datetime | bytes
    message_id: UUID | bytes
    key: str | None
    headers: str | None
    content_type: str | None
    payload: bytes


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to be published in a batch.

    Attributes:
        value: Encoded by the codec; bytes, bytearray and memoryview are sent as they are.
        key: Picks the partition and, for consumers that keep the order of keys, what waits for what; None: unordered.
        headers: A JSON object of strings or other JSON values.
        message_id: Generated where it is None.
        partition: Overrides the key's partition.
        dedup_key: Of messages with the same one, the first within the topic's window is published, and no other. Without
            one, the message_id counts as such on topics that have a window.
        delay_s: Published so many seconds after the call; for consumers it does not exist before.
        deliver_at: Published then, an aware datetime; at once where it has passed by the server's clock.
    """

    value: object
    key: str | None = None
    headers: Mapping[str, Any] | None = None
    message_id: UUID | str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    partition: int | None = None
    dedup_key: str | None = None
    delay_s: float | None = None
    deliver_at: datetime | None = None


class Published(NamedTuple):
    """The place that a message was given; it exists for readers once the transaction has committed.

    `duplicate`: the place and id are those of an earlier message with the same dedup key; this one was not published.
    """

    topic: str
    partition: int
    offset: int
    message_id: UUID
    duplicate: bool = False


class Scheduled(NamedTuple):
    """A message that waits to be published at `due_at`, once the transaction has committed; it has no place yet.

    `duplicate`: time and id are those of an earlier message with the same dedup key, which still waits.
    """

    topic: str
    message_id: UUID
    due_at: datetime
    duplicate: bool = False

    @property
    def partition(self) -> None:
        return None

    @property
    def offset(self) -> None:
        return None


class Retention(NamedTuple):
    """What is kept of a topic. Its messages go by whole segments, the oldest first.

    Attributes:
        retention_s: A segment may go when it was closed so long ago; None: not for its age.
        retention_bytes: It may go, too, when the segments behind it hold so many bytes; None: not for its size.
        unconsumed: What a group has not passed is kept ("keep"), or skipped for it, recorded and alerted on ("drop").
        segment_max_age_s: A segment that is so old is closed; None: an eighth of retention_s, a minute to a day.
        segment_max_bytes: One that is so large is closed, index and all; None: not for its size.
    """

    retention_s: float | None = 604_800.0
    retention_bytes: int | None = None
    unconsumed: str = "keep"
    segment_max_age_s: float | None = None
    segment_max_bytes: int | None = 1_073_741_824


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it is now.

    Attributes:
        high_offsets: The highest offset handed out per partition, -1 for none yet.
        dedup_window_s: How long message ids are compared; None: not at all.
        max_backlog: Publishes are refused while the slowest group has so many messages to settle; None: never.
        retention_s, retention_bytes, unconsumed, segment_max_age_s, segment_max_bytes: See `Retention`.
        first_offsets: The lowest offset per partition that retention has kept.
    """

    topic_id: int
    name: str
    partitions: int
    max_message_bytes: int
    wake: bool
    channel: str
    segment: int
    first_segment: int
    created_at: datetime
    high_offsets: tuple[int, ...]
    size_bytes: int
    dedup_window_s: float | None
    max_backlog: int | None
    retention_s: float | None
    retention_bytes: int | None
    unconsumed: str
    segment_max_age_s: float | None
    segment_max_bytes: int | None
    first_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Where a group stands in one partition; `lag` is an upper bound of the messages it has not settled."""

    group: str
    topic: str
    partition: int
    current_offset: int
    log_start_offset: int
    log_end_offset: int
    lag: int
    window_open: int
    parked: int
    start_offset: int
    epoch: int
    progress_at: datetime
    member_id: UUID | None
    client_id: str | None
    host: str | None
    member_state: str | None
    paused: bool


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One coordinator's part in a group; `lease_left_s` is negative once it counts as dead."""

    group: str
    member_id: UUID
    client_id: str
    host: str
    pid: int
    state: str
    started_at: datetime
    joined_at: datetime
    lease_until: datetime
    lease_left_s: float
    topics: tuple[str, ...]
    partitions: int

    @property
    def live(self) -> bool:
        """Its lease runs, whether or not somebody has declared it dead meanwhile."""
        return self.state != "dead" and self.lease_left_s >= 0


@dataclass(frozen=True, slots=True)
class CoordinatorInfo:
    """One consumer process, with all its groups.

    Attributes:
        state: alive, draining (by an operator), away (left, its place is kept for its static id), expired (its lease is over and
            nobody has declared it dead yet), or dead (kept for a day).
        session: held, lost, or none (behind a pooler, or not connected just now: the lease alone decides).
        lease_left_s: Negative once the lease is over; while away, what is left of the grace.
        partitions: Claims that it owns.
    """

    member_id: UUID
    client_id: str
    static_id: str | None
    host: str
    pid: int
    state: str
    session: str
    started_at: datetime
    lease_until: datetime
    lease_left_s: float
    died_at: datetime | None
    groups: tuple[str, ...]
    partitions: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """A partition that is not where the plan wants it; without a member_id nobody owns it. `waiting_s`: since it was planned."""

    group: str
    topic: str
    partition: int
    member_id: UUID | None
    client_id: str | None
    target_member_id: UUID
    target_client_id: str | None
    waiting_s: float


class StuckClaim(NamedTuple):
    """A claim that anybody could take, were its row not held: its owner is gone, or its lease is over."""

    key: "PartitionKey"
    owner: UUID | None
    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class Blocker:
    """Who holds a row. A prepared transaction has no pid: `prepared` is its gid, and ends by COMMIT or ROLLBACK PREPARED.

    Of another role's session more than pid and role is known to those with pg_read_all_stats.
    """

    pid: int | None
    prepared: str | None
    role: str | None
    application_name: str | None
    client_addr: str | None
    state: str | None
    transaction_age_s: float | None


@dataclass(frozen=True, slots=True)
class BlockedClaim:
    """A stuck claim, and who holds it; nobody, where it was let go of just now, or holders took turns."""

    group: str
    topic: str
    partition: int
    member_id: UUID | None
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group with what `groups list` shows; `members` counts the coordinators that take part.

    Attributes:
        unused_since: Since when it has no members; None: it has some, or never had.
        expire_s, on_expiry, max_dead_letter_age_s: See `set_group_expiry`.
    """

    name: str
    topics: tuple[str, ...]
    members: int
    lag: int
    created_at: datetime
    unused_since: datetime | None = None
    expire_s: float | None = None
    on_expiry: str = "release"
    max_dead_letter_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class MessageState:
    """What one offset is to one group.

    Attributes:
        state: early (below the group's start), future, open (handed out), waiting, behind (its key), running (handed out
            again), settled, dead or skipped.
        epoch, member_id, client_id, host: Whose partition it is; None: nobody's.
        fails, crashes, replays: So far; fails of a dead one: its last attempt's number.
        next_at: When a waiting one is tried again.
        reason: Why it is dead or skipped.
        error: The last one.
        errors: Its history: the first failure and the last four.
        since: When this state began, where that is known.
    """

    group: str
    state: str
    epoch: int
    member_id: UUID | None
    client_id: str | None
    host: str | None
    fails: int
    crashes: int
    replays: int
    next_at: datetime | None
    reason: str | None
    error: str | None
    errors: Sequence[Mapping[str, Any]]
    since: datetime | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up on.

    Attributes:
        content_type: None means JSON.
        headers, payload, errors: None where only a list was asked for.
        reason: attempts, crash or rejected.
        error: What was said at its death, or why it was rejected.
        attempts: The number of the last attempt.
        replays: How often it was replayed before it died again.
        errors: Its history: the first failure and the last four, each with error, attempt and, from handlers, traceback.
    """

    topic: str
    partition: int
    offset: int
    key: str | None
    message_id: UUID
    published_at: datetime
    content_type: str | None
    headers: Mapping[str, Any] | None
    payload: bytes | None
    payload_bytes: int
    reason: str
    error: str | None
    attempts: int
    crashes: int
    replays: int
    errors: Sequence[Mapping[str, Any]] | None
    died_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterCause:
    """How many dead letters have the same topic, reason and first line of the error; when they died."""

    topic: str
    reason: str
    error: str | None
    dead_letters: int
    oldest: datetime
    newest: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterTotals:
    """All dead letters of a group, whatever the filters; `dropped` counts what its bound has cost so far."""

    dead_letters: int
    max_dead_letters: int
    dropped: int
    oldest: datetime | None
    newest: datetime | None
    as_of: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterStats:
    """The totals of a group, and the causes among what matches the filters, the most frequent first."""

    totals: DeadLetterTotals
    causes: Sequence[DeadLetterCause]

    @property
    def matched(self) -> int:
        return sum(cause.dead_letters for cause in self.causes)


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What became of dead letters that matched.

    Attributes:
        matched: Looked at; in a dry run, those that would be.
        replayed: Given back to the group.
        gone: Replayed, purged or locked by somebody else meanwhile.
        full: Left where they are, because too many messages wait in their partition.
        as_of: What died later was left alone: a message that dies again is not replayed again by the same call.
    """

    matched: int
    replayed: int
    gone: int
    full: int
    as_of: datetime


@dataclass(frozen=True, slots=True)
class PurgeOutcome:
    """What became of dead letters that matched: purged, or gone (or locked by a replay) meanwhile; see ReplayOutcome."""

    matched: int
    purged: int
    gone: int
    as_of: datetime


class Settler(Protocol):
    """Takes what a handler says of a delivery; the consumer shells implement it."""

    def ack(self, message: "Message", *, wait: bool) -> Any: ...

    def nack(self, message: "Message", delay_s: float | None) -> None: ...

    def reject(self, message: "Message", reason: str) -> None: ...

    def extend(self, message: "Message", seconds: float) -> bool: ...

    def transaction(self, message: "Message", connection: Any) -> Any: ...

    def decode(self, message: "Message") -> Any: ...


@dataclass(slots=True, eq=False)
class Source:
    """What all messages of one claim share."""

    group: str
    topic: str
    partition: int
    epoch: int
    settler: Settler | None = None


class Facts(NamedTuple):
    """What is known of a message besides its row; fresh ones have none. alone: of its last crash.

    late: Its deadline has passed in this epoch.
    """

    fails: int = 0
    crashes: int = 0
    alone: bool = False
    replays: int = 0
    late: bool = False


@dataclass(slots=True, eq=False)
class Delivery:
    """One hand-over of a message: what a settling call names (offset, epoch, delivery number).

    Attributes:
        owner: The claim in memory (core.partition.Partition), which knows the epoch.
        number: Of this hand-over, unique and rising within the coordinator.
        attempt: How often the message was handed over to a handler of the group, this time included; at least.
        deadline_s: Monotonic; when it is taken back.
        started_s: Monotonic; when it was handed over.
        extend_until_s: Monotonic; until then the deadline is moved on by itself, because a handler of ours is at it.
        live: Handed over, not settled, deadline ahead.
        answered: Its handler has said ack, nack or reject; what it says after that is ignored.
    """

    owner: Any
    row: Row
    offset: int
    number: int
    attempt: int
    deadline_s: float
    started_s: float
    facts: Facts | None = None
    live: bool = True
    answered: bool = False
    extend_until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """The owner of messages that were read without a group."""

    source: Source


class Message(Delivery):
    """A message in the hands of a consumer. Read-only; settle it by `ack`, `nack` or `extend`.

    It is its own delivery: another object for each message would cost as much again, most of all in the garbage collector.
    """

    __slots__ = ("_value",)

    @classmethod
    def peeked(cls, row: Row, source: Source) -> Self:
        """Make a message that nobody has claimed: there is nothing to settle."""
        return cls(Unclaimed(source), row, row[1], 0, 0, 0.0, 0.0)

    @property
    def delivery(self) -> Delivery | None:
        """This hand-over; None for a message that was read without a group."""
        return self if self.number else None

    @property
    def _source(self) -> Source:
        source: Source = self.owner.source
        return source

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def group(self) -> str:
        return self._source.group

    @property
    def partition(self) -> int:
        return self._source.partition

    @property
    def epoch(self) -> int:
        """Number of the ownership under which this delivery was made; the fencing token."""
        return self._source.epoch

    @property
    def published_at(self) -> datetime:
        """The server's clock when the row was inserted; not the commit's time."""
        at = self.row[2]
        return at if isinstance(at, datetime) else _WIRE_EPOCH + timedelta(microseconds=int.from_bytes(at, signed=True))

    @property
    def message_id(self) -> UUID:
        found = self.row[3]
        return found if isinstance(found, UUID) else UUID(bytes=found)

    @property
    def key(self) -> str | None:
        return self.row[4]

    @property
    def headers(self) -> dict[str, Any]:
        """A fresh dict each time; empty where none were given."""
        text = self.row[5]
        return json.loads(text) if text else {}

    @property
    def content_type(self) -> str:
        return self.row[6] or JSON_CONTENT

    @property
    def payload(self) -> bytes:
        return self.row[7]

    @property
    def correlation_id(self) -> str | None:
        return self.headers.get(CORRELATION_HEADER)

    @property
    def traceparent(self) -> str | None:
        return self.headers.get(TRACE_HEADER)

    @property
    def value(self) -> Any:
        """The payload decoded by the subscription's codec: JSON if nothing else was said; bytes stay bytes.

        Raises:
            HandlerError: If the payload is not what the codec takes; inside a handler it counts as the handler's failure.
        """
        try:
            return self._value
        except AttributeError:
            settler: Settler | None = self.owner.source.settler
            self._value: Any = settler.decode(self) if settler is not None else self.payload
            return self._value

    def ack(self, *, wait: bool = False) -> Any:
        """Settle: done, never delivered to this group again.

        Durable with the next exchange, a few milliseconds later; with `wait` the call returns after its COMMIT (in asyncio: await
        what it returns).

        Within the message's own transaction it says nothing: the end of that acks, or nothing does.

        Raises:
            StaleEpochError: If the partition is owned by somebody else by now; the message is theirs.
            HandlerError: With `wait`, within the message's own transaction.
            UnavailableError: With `wait`, if the database can't be reached in time; the ack stays queued.
        """
        settler: Settler | None = self.owner.source.settler
        if settler is None or not self.number:
            settler = self._settler()
        return settler.ack(self, wait=wait)

    def nack(self, *, delay_s: float | None = None) -> None:
        """Give back as failed: delivered again after `delay_s`, or what the retry policy says; a dead letter when that is spent.

        A `delay_s` is taken as by `Retry`.

        Ignored when the delivery's deadline has passed: it was taken back then. Its own transaction, if it is in one, is
        rolled back all the same.
        """
        self._settler().nack(self, delay_s)

    def reject(self, reason: str = "rejected") -> None:
        """Settle as a dead letter. Ignored when the delivery's deadline has passed, as by `nack`."""
        self._settler().reject(self, reason)

    def extend(self, seconds: float) -> bool:
        """Move the deadline to `seconds` from now, an hour at most; False, and nothing happens, when it has passed."""
        return self._settler().extend(self, seconds)

    def transaction(self, connection: Any = None) -> Any:
        """Return a context manager: a transaction in which this message is acked at the end, or nothing of it happens.

        It yields the connection: one of our pool, or the one that is given. In asyncio it is an asynchronous one.

        Raises (at the end of the block):
            StaleEpochError: Not the owner any more; everything in the block was rolled back.
            AlreadySettledError: Another run was first, or the block has given the message back or rejected it; everything in
                it was rolled back.
            HandlerError: The block has ended the transaction by a statement of its own; nothing was acked.
        """
        return self._settler().transaction(self, connection)

    def _settler(self) -> Settler:
        settler: Settler | None = self.owner.source.settler
        if settler is None or not self.number:
            message = "this message was read without a group (peek): there is nothing to settle"
            raise TypeError(message)
        return settler

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition}@{self.offset} key={self.key!r} {len(self.payload)} bytes>"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that was just taken: where its owner starts. `done` holds disjoint ascending ranges [lo, hi)."""

    key: PartitionKey
    epoch: int
    seq: int
    committed: int
    done: tuple[tuple[int, int], ...]
    takeover: bool
    crashes: tuple["Crash", ...] = ()
    parked: tuple[tuple[int, str | None], ...] = ()
    # Taken from an owner that lives and has not handed it over in time.
    forced: bool = False


class Crash(NamedTuple):
    """One unclean end of an earlier owner: what it may have been running, whether that was one message, and how long ago."""

    offsets: tuple[tuple[int, int], ...]
    alone: bool
    age_s: float


@dataclass(frozen=True, slots=True)
class GroupState:
    """What a plan is made from: members with the topics each reads, and every claim with owner and target."""

    group_id: int
    version: int
    planned_version: int
    members: Mapping[UUID, frozenset[int]]
    claims: Sequence["ClaimState"]
    # Members that an operator has drained; they are not among the others.
    draining: frozenset[UUID] = frozenset()
    # The ages of the newest join, and of the first one that no plan knows yet.
    joined_s: float = float("inf")
    unplanned_s: float | None = None


class PartitionPause(NamedTuple):
    """A partition that was to be paused or resumed; `changed`: it was not so before."""

    topic: str
    partition: int
    changed: bool


@dataclass(frozen=True, slots=True)
class SeekOutcome:
    """Where a group is moved in one partition.

    Attributes:
        wanted_offset: The target before it was clamped to [log_start_offset, log_end_offset].
        members: Live ones that read the topic.
        skipped: Offsets that are passed unsettled; those of transactions that are open or were rolled back count.
        parked, dead_letters: Taken back, because their messages come again or are passed.
        epoch: The claim's from then on; None in a dry run.
    """

    topic: str
    partition: int
    from_offset: int
    wanted_offset: int
    to_offset: int
    log_start_offset: int
    log_end_offset: int
    members: int
    skipped: int
    parked: int
    dead_letters: int
    epoch: int | None

    @property
    def clamped(self) -> bool:
        return self.wanted_offset != self.to_offset


@dataclass(frozen=True, slots=True)
class SkipOutcome:
    """One message that a group was to pass.

    Attributes:
        state: open or parked.
        attempts, error: Its failures so far.
        members, epoch: See SeekOutcome.
    """

    topic: str
    partition: int
    offset: int
    state: str
    key: str | None
    message_id: UUID
    published_at: datetime
    attempts: int
    error: str | None
    members: int
    epoch: int | None


class DeletedGroup(NamedTuple):
    """What a group had when it was deleted."""

    members: int
    partitions: int
    dead_letters: int


class DeletedTopic(NamedTuple):
    """What a topic had when it was deleted; `unsettled` is an upper bound."""

    groups: tuple[str, ...]
    members: int
    unsettled: int
    scheduled: int


@dataclass(frozen=True, slots=True)
class GroupInFlight:
    """What the owner of a partition may have in hand: `messages` of its window from `first_offset` on, and `retries` that run."""

    topic: str
    partition: int
    member_id: UUID
    client_id: str | None
    host: str | None
    first_offset: int
    messages: int
    retries: int
    since: datetime


class Oldest(NamedTuple):
    """The oldest message of a partition that a group has not settled."""

    offset: int
    published_at: datetime
    age_s: float


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """A message that waits for its time; `attempts`, `last_error`: moves that have failed."""

    schedule_id: int
    topic: str
    message_id: UUID
    key: str | None
    due_at: datetime
    next_at: datetime
    attempts: int
    last_error: str | None
    payload_bytes: int
    created_at: datetime


class ClaimState(NamedTuple):
    """`free`: nobody alive owns it; `overdue`: its owner's lease is over. `paused`: nothing of it may be fetched or handed over.

    `waiting_s`: since it is meant for its target.
    """

    topic_id: int
    partition: int
    owner: UUID | None
    free: bool
    target: UUID | None
    paused: bool = False
    waiting_s: float = 0.0
    overdue: bool = False


@dataclass(frozen=True, slots=True)
class JoinedTopic:
    """A topic as a member needs it."""

    topic_id: int
    name: str
    partitions: int
    channel: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to joining a group; group_id is None where it was to be joined again, and is gone."""

    group_id: int | None
    topics: Sequence[JoinedTopic] = field(default_factory=tuple)

    def __iter__(self) -> Iterator[JoinedTopic]:
        return iter(self.topics)


class Settled(NamedTuple):
    """The answer of an exchange for one claim; seq, committed and hwm only where status is ok.

    status: idle, ok, fenced, busy or stale, as sql/functions/deliveries/exchange.sql tells.
    """

    ord: int
    status: str
    seq: int | None
    committed: int | None
    hwm: int | None
    high: int
    holes: int | None = None
    refused: list[int] | None = None
    refusal: str | None = None


class Resolved(NamedTuple):
    """The newest progress of one claim, read under the fence; status is ok or fenced."""

    status: str
    seq: int
    committed: int
    hwm: int
    done: tuple[tuple[int, int], ...]
    acked: tuple[tuple[int, int], ...] = ()


class Due(NamedTuple):
    """Until when the next parked message of a claim waits; None where none does."""

    ord: int
    due_in_s: float | None


class Parked(NamedTuple):
    """A parked message that was handed out, with its facts."""

    row: Row
    facts: Facts


@dataclass(slots=True)
class GapEvidence:
    """One claim's part of a pass: V, the open publishers by virtual transaction, and the rows that have appeared."""

    high: int = -1
    holders: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)


def value_text(payload: bytes) -> str:
    """Return a payload as JSON on one line: itself where it is JSON, else its bytes in base64.

    Not parsed and written again: that would change 1.10 to 1.1, and lose the first of two fields of one name.
    """
    try:
        text = payload.decode()
        _JSON.decode(text)
    except (ValueError, RecursionError):
        return json.dumps({"payload_base64": base64.b64encode(payload).decode()})
    # Line breaks stand between tokens only: inside of a string, JSON has them escaped.
    return text.replace("\n", " ").replace("\r", " ").strip()


def _refuse(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)


# Only to see whether it is JSON: numbers of any length pass, and NaN, which Python alone takes, does not.
_JSON = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_refuse)
