"""What a group gave up on: look at it, give it back to the group, export it, delete it.

Replaying and purging go page by page, each partition's part of a page in a transaction of its own. What is done is gone from
the list, so a call that was cut off is simply made again; row locks keep two from doing the same one twice. Neither
touches what died after the call began: a message that dies again at once would be replayed for ever.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, Unpack

from coordinator.errors import InvalidInputError, NotFoundError
from coordinator.model import DeadLetter, DeadLetterStats, PurgeOutcome, ReplayOutcome, value_text
from coordinator.protocol import dead_letters as protocol
from coordinator.protocol.check import flag, int4, int8, maybe, moment, nearest, number, text, wrong
from coordinator.protocol.dead_letters import REASONS, Filters, Place, in_transaction, place_of
from coordinator.protocol.statement import Flow, call

T = TypeVar("T")

# One page of letters in full, in rows and in bytes: what an export holds in memory (one more letter at most).
_PAGE_ROWS = 500
_PAGE_BYTES = 8 * 1024 * 1024
# The longest pause between batches of a replay whose rate is bounded.
_BATCH_S = 0.5

OnBatch = Callable[[int], object]


class Run(Protocol):
    """Runs a flow on a connection of its own, in autocommit mode."""

    def __call__(self, flow: Flow[T]) -> T: ...


class ARun(Protocol):
    """`Run` for asyncio."""

    async def __call__(self, flow: Flow[T]) -> T: ...


class DeadLetters:
    """The dead letters of one group.

    Filters are keywords, see `Filters`. All methods raise NotFoundError where there is no such group or topic, and
    InvalidInputError for a filter that cannot be one, such as a pattern that is no regular expression.
    """

    def __init__(self, run: Run, group: str, max_parked: int) -> None:
        self._run = run
        self._group = text("group", group)
        self._max_parked = max_parked

    def list(
        self, *, limit: int = 100, after: DeadLetter | None = None, **filters: Unpack[Filters]
    ) -> list[DeadLetter]:
        """One page without headers, payloads and histories, those that died first first; `after`: the last one before it."""
        return self._run(_list(self._group, limit, after, filters))

    def get(self, topic: str, partition: int, offset: int) -> DeadLetter:
        """One of them with everything. Raises: NotFoundError."""
        return self._run(_get(self._group, topic, partition, offset))

    def stats(self, **filters: Unpack[Filters]) -> DeadLetterStats:
        """The totals of the group, and why those that match have died."""
        return self._run(_stats(self._group, filters))

    def counts(self) -> dict[tuple[str, int], int]:
        """How many there are, by topic and partition; empty for an unknown group."""
        return self._run(call(protocol.dead_letter_counts(self._group)))

    def iterate(self, **filters: Unpack[Filters]) -> Iterator[DeadLetter]:
        """All that match, in full, page by page: memory holds one page."""
        pages = _Pages(self._group, filters)
        while page := self._run(pages.next()):
            yield from page

    def export(self, **filters: Unpack[Filters]) -> Iterator[str]:
        """`iterate` as lines of JSON, each with its line break."""
        return map(json_line, self.iterate(**filters))

    def replay(
        self,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        limit: int | None = None,
        on_batch: OnBatch | None = None,
        **filters: Unpack[Filters],
    ) -> ReplayOutcome:
        """Give back to this group, and to no other, what matches: it starts at attempt 1 and keeps its history.

        Args:
            dry_run: Only count.
            rate: Replay so many a second, at most.
            limit: Replay so many, at most.
            on_batch: Called after each batch with the number replayed so far.
        """
        work = _Replay(self._group, self._max_parked, rate, limit, filters)
        if flag("dry_run", dry_run):
            return self._run(work.count())
        self._run(work.begin())
        while not work.ended:
            self._run(work.step())
            if on_batch is not None:
                on_batch(work.replayed)
            time.sleep(work.pause_s(time.monotonic()))
        return work.outcome()

    def purge(self, *, dry_run: bool = False, **filters: Unpack[Filters]) -> PurgeOutcome:
        """Delete for good what matches; with `dry_run` only count."""
        work = _Purge(self._group, filters)
        if flag("dry_run", dry_run):
            return self._run(work.count())
        self._run(work.begin())
        while not work.ended:
            self._run(work.step())
        return work.outcome()

    def set_max(self, max_dead_letters: int) -> int:
        """Bound the store: maintenance drops what died first beyond so many, and counts it. Returns: the bound before."""
        return self._run(_set_max(self._group, max_dead_letters))


class AsyncDeadLetters:
    """`DeadLetters` for asyncio, with the same names."""

    def __init__(self, run: ARun, group: str, max_parked: int) -> None:
        self._run = run
        self._group = text("group", group)
        self._max_parked = max_parked

    async def list(
        self, *, limit: int = 100, after: DeadLetter | None = None, **filters: Unpack[Filters]
    ) -> list[DeadLetter]:
        """`DeadLetters.list`."""
        return await self._run(_list(self._group, limit, after, filters))

    async def get(self, topic: str, partition: int, offset: int) -> DeadLetter:
        """`DeadLetters.get`."""
        return await self._run(_get(self._group, topic, partition, offset))

    async def stats(self, **filters: Unpack[Filters]) -> DeadLetterStats:
        """`DeadLetters.stats`."""
        return await self._run(_stats(self._group, filters))

    async def counts(self) -> dict[tuple[str, int], int]:
        """`DeadLetters.counts`."""
        return await self._run(call(protocol.dead_letter_counts(self._group)))

    async def iterate(self, **filters: Unpack[Filters]) -> AsyncIterator[DeadLetter]:
        """`DeadLetters.iterate`."""
        pages = _Pages(self._group, filters)
        while page := await self._run(pages.next()):
            for letter in page:
                yield letter

    async def export(self, **filters: Unpack[Filters]) -> AsyncIterator[str]:
        """`DeadLetters.export`."""
        async for letter in self.iterate(**filters):
            yield json_line(letter)

    async def replay(
        self,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        limit: int | None = None,
        on_batch: OnBatch | None = None,
        **filters: Unpack[Filters],
    ) -> ReplayOutcome:
        """`DeadLetters.replay`."""
        work = _Replay(self._group, self._max_parked, rate, limit, filters)
        if flag("dry_run", dry_run):
            return await self._run(work.count())
        await self._run(work.begin())
        while not work.ended:
            await self._run(work.step())
            if on_batch is not None:
                on_batch(work.replayed)
            await asyncio.sleep(work.pause_s(time.monotonic()))
        return work.outcome()

    async def purge(self, *, dry_run: bool = False, **filters: Unpack[Filters]) -> PurgeOutcome:
        """`DeadLetters.purge`."""
        work = _Purge(self._group, filters)
        if flag("dry_run", dry_run):
            return await self._run(work.count())
        await self._run(work.begin())
        while not work.ended:
            await self._run(work.step())
        return work.outcome()

    async def set_max(self, max_dead_letters: int) -> int:
        """`DeadLetters.set_max`."""
        return await self._run(_set_max(self._group, max_dead_letters))


def json_line(letter: DeadLetter) -> str:
    """Return a dead letter as a line of JSON; its payload, where it is JSON, as the publisher wrote it, else in base64."""
    facts = facts_of(letter)
    payload = letter.payload
    head = json.dumps({**facts, "headers": letter.headers, "errors": letter.errors}, ensure_ascii=False)
    return f'{head[:-1]}, "value": {value_text(payload) if payload is not None else "null"}}}\n'


def facts_of(letter: DeadLetter) -> dict[str, Any]:
    """Return what a list says of a dead letter, with what JSON has."""
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "key": letter.key,
        "message_id": str(letter.message_id),
        "published_at": _iso(letter.published_at),
        "died_at": _iso(letter.died_at),
        "reason": letter.reason,
        "error": letter.error,
        "attempts": letter.attempts,
        "crashes": letter.crashes,
        "replays": letter.replays,
        "content_type": letter.content_type or "application/json",
        "payload_bytes": letter.payload_bytes,
    }


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")


class _Pages:
    """Reads on where the page before ended."""

    def __init__(self, group: str, filters: Filters) -> None:
        self._group = group
        self._filters = _checked(filters)
        self._after: Place | None = None

    def next(self) -> Flow[list[DeadLetter]]:
        page = yield from call(
            protocol.select_dead_letters(
                self._group, self._filters, self._after, _PAGE_ROWS, full=True, max_bytes=_PAGE_BYTES
            )
        )
        if page:
            self._after = place_of(page[-1])
        return page


class _Sweep:
    """Goes once through what matches and had died when it began, page by page, each partition's part in one call."""

    def __init__(self, group: str, filters: Filters) -> None:
        self.group = group
        self.filters = _checked(filters)
        self.after: Place | None = None
        self.matched = self.done = self.gone = self.full = 0
        self.as_of = datetime.max.replace(tzinfo=UTC)
        self.ended = False

    def begin(self) -> Flow[None]:
        """Ask the database for the time, and whether the group is there."""
        until = self.filters.get("until")
        as_of = (yield from call(protocol.dead_letter_totals(self.group))).as_of
        self.as_of = as_of if until is None else min(as_of, until)
        self.filters = {**self.filters, "until": self.as_of}

    def matching(self) -> Flow[int]:
        yield from self.begin()
        causes = yield from call(protocol.dead_letter_stats(self.group, self.filters))
        return sum(cause.dead_letters for cause in causes)

    def page(self, limit: int) -> Flow[dict[tuple[str, int], list[int]]]:
        """The next offsets by topic and partition; none is the end."""
        page = yield from call(protocol.select_dead_letters(self.group, self.filters, self.after, limit, full=False))
        parts: dict[tuple[str, int], list[int]] = {}
        for letter in page:
            parts.setdefault((letter.topic, letter.partition), []).append(letter.offset)
            self.after = place_of(letter)
        self.matched += len(page)
        self.ended = not page
        return parts


class _Replay(_Sweep):
    """A replay in batches: at what pace, and until when."""

    def __init__(self, group: str, max_parked: int, rate: float | None, limit: int | None, filters: Filters) -> None:
        super().__init__(group, filters)
        # So slow a replay never ends, and its pauses stay within what a sleep takes.
        maybe(lambda name, value: number(name, value, 0.001), "rate", rate)
        maybe(lambda name, value: int8(name, value, 1), "limit", limit)
        self._max_parked = max_parked
        self._rate = rate
        self._limit = limit
        self._started_s: float | None = None

    @property
    def replayed(self) -> int:
        return self.done

    def count(self) -> Flow[ReplayOutcome]:
        matching = yield from self.matching()
        return ReplayOutcome(matching if self._limit is None else min(matching, self._limit), 0, 0, 0, self.as_of)

    def step(self) -> Flow[None]:
        parts = yield from self.page(self._batch())
        for (topic, partition), offsets in parts.items():
            outcomes = yield from in_transaction(
                protocol.replay(self.group, topic, partition, offsets, self._max_parked)
            )
            self.done += outcomes.count("replayed")
            self.gone += outcomes.count("gone")
            self.full += outcomes.count("full")
        self.ended = self.ended or self.done == self._limit

    def pause_s(self, now_s: float) -> float:
        """How long the next batch has to wait, so that the rate is kept from the first one on."""
        if self._rate is None or self.ended:
            return 0.0
        batch = self._batch()
        if self._started_s is None:
            # What the first batch has taken is paid for now.
            self._started_s = now_s
        # The next batch may start when, with it, no more than the rate allows has been replayed up to its end.
        return max(self._started_s + (self.done + batch - self._first_batch()) / self._rate - now_s, 0.0)

    def outcome(self) -> ReplayOutcome:
        return ReplayOutcome(self.matched, self.done, self.gone, self.full, self.as_of)

    def _first_batch(self) -> int:
        assert self._rate is not None
        return max(1, min(_PAGE_ROWS, int(self._rate * _BATCH_S)))

    def _batch(self) -> int:
        size = _PAGE_ROWS if self._rate is None else self._first_batch()
        return size if self._limit is None else max(1, min(size, self._limit - self.done))


class _Purge(_Sweep):
    def count(self) -> Flow[PurgeOutcome]:
        return PurgeOutcome((yield from self.matching()), 0, 0, self.as_of)

    def step(self) -> Flow[None]:
        parts = yield from self.page(_PAGE_ROWS)
        for (topic, partition), offsets in parts.items():
            purged = yield from in_transaction(protocol.purge(self.group, topic, partition, offsets))
            self.done += purged
            self.gone += len(offsets) - purged

    def outcome(self) -> PurgeOutcome:
        return PurgeOutcome(self.matched, self.done, self.gone, self.as_of)


def _list(group: str, limit: int, after: DeadLetter | None, filters: Filters) -> Flow[list[DeadLetter]]:
    int4("limit", limit, 1)
    if after is not None and not isinstance(after, DeadLetter):
        raise wrong("after", "a DeadLetter of the page before", after, typed=True)
    place = None if after is None else place_of(after)
    return (yield from call(protocol.select_dead_letters(group, _checked(filters), place, limit, full=False)))


def _get(group: str, topic: str, partition: int, offset: int) -> Flow[DeadLetter]:
    filters = _checked({"topic": topic, "partition": partition, "offset": offset})
    found = yield from call(protocol.select_dead_letters(group, filters, None, 1, full=True))
    if not found:
        raise NotFoundError(
            f"group {group!r} has no dead letter at offset {offset} of partition {partition} of {topic!r}"
        )
    return found[0]


def _stats(group: str, filters: Filters) -> Flow[DeadLetterStats]:
    totals = yield from call(protocol.dead_letter_totals(group))
    return DeadLetterStats(totals, (yield from call(protocol.dead_letter_stats(group, _checked(filters)))))


def _set_max(group: str, max_dead_letters: int) -> Flow[int]:
    int4("max_dead_letters", max_dead_letters, 0)
    return (yield from in_transaction(protocol.set_max_dead_letters(group, max_dead_letters)))


def _checked(filters: Filters) -> Filters:
    """Refuse what SQL would refuse with an error of its own, or read in another sense.

    Raises:
        InvalidInputError: Says which filter, what was found and what was wanted.
    """
    for name, value in filters.items():
        if name not in Filters.__annotations__:
            raise InvalidInputError(f"there is no filter {name!r}; {nearest(name, Filters.__annotations__)}")
        if value is None:
            continue
        match name:
            case "partition":
                int4(name, value, 0)
            case "offset":
                int8(name, value, 0)
            case "reason":
                if value not in REASONS:
                    raise InvalidInputError(
                        f"reason: wanted {', '.join(REASONS[:-1])} or {REASONS[-1]}, found {value!r}"
                    )
            case "since" | "until":
                moment(name, value)
            case _:
                text(name, value)
    return filters
