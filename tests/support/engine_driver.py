"""Carries out an engine's commands on a fake database, as the consumer shells do on a real one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from support.fake_database import ENDLESS, Entry, FakeDatabase

from coordinator.core.loop import Changes, Engine, Exchange, Limits, Resolve, Subscription, Wait
from coordinator.core.ranges import compress
from coordinator.core.retry import Failure, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.fake_database import Range

    from coordinator.model import Due, GapEvidence, Message, Parked, PartitionKey, Row, Settled

# As consumer/requests.py has it.
NACK = Failure("nack")


def nothing() -> None:
    """What happens between the steps of a round trip unless a test says otherwise."""


@dataclass(frozen=True, slots=True)
class Request:
    """A round trip as it is sent: what the engine learns later does not change it any more."""

    entries: Sequence[Entry]
    releases: Sequence[tuple[PartitionKey, int]]
    reads: Sequence[tuple[PartitionKey, int, Sequence[Range]]]
    gaps: Sequence[tuple[int, int, Sequence[Range]]]
    due: Sequence[tuple[PartitionKey, int, int]]
    parked: Sequence[tuple[PartitionKey, int, Sequence[Range]]]

    @classmethod
    def of(cls, command: Exchange) -> Request:
        hard = copy.deepcopy(command.hard)
        return cls(
            [
                Entry(p.key, p.epoch, p.seq, p.hwm, ranges, want, [line for line in hard if line["o"] == place])
                for place, (p, ranges, want) in enumerate(
                    zip(command.partitions, command.settled, command.wants, strict=True), 1
                )
            ],
            [(p.key, p.epoch) for p in command.releases],
            [(p.key, p.epoch, [(p.position, ENDLESS)]) for p in command.fetching],
            [(p.key.topic_id, p.key.partition, ranges) for p, ranges in command.gaps],
            [(p.key, p.epoch, most) for p, most in zip(command.parked, command.due_limits, strict=True)],
            [(p.key, p.epoch, compress(p.handed)) for p in command.parked],
        )


def commit(database: FakeDatabase, coordinator: UUID, request: Request) -> tuple[list[Settled], int, list[Due]]:
    """The first transaction of a round trip: exchange, release and the parked that are due."""
    settled = database.exchange(coordinator, request.entries)
    released = database.release(coordinator, request.releases)
    return settled, released, database.dispatch_due(coordinator, request.due)


def read(
    database: FakeDatabase, request: Request, between: Callable[[], object] = nothing
) -> tuple[list[Row], dict[int, GapEvidence], list[Parked]]:
    """What is read behind the commit: the parked that are handed out, windows, then the evidence about gaps."""
    parked = database.fetch_retries(request.parked)
    between()
    rows = database.fetch(request.reads)
    between()
    return rows, database.gap_pass(request.gaps, between), parked


class Shell:
    """One coordinator that does everything at once, for tests that tell a story step by step. Its clock is `now_s`."""

    def __init__(
        self,
        database: FakeDatabase,
        number: int = 1,
        limits: Limits | None = None,
        *,
        ordering: str = "key",
        policy: RetryPolicy | None = None,
        transactional: bool = False,
    ) -> None:
        self.database = database
        self.id = UUID(int=number)
        self.now_s = database.now_s
        self.woken = False
        self.changes = Changes()
        self.engine = Engine(limits or Limits(), self._wake)
        self.engine.on_lease(float("inf"))
        database.register(self.id, lease_s=10.0)
        for group, topic in sorted({(key.group_id, key.topic_id) for key in database.claims}):
            self.engine.subscribe(
                Subscription(
                    f"g{group}",
                    group,
                    f"t{topic}",
                    topic,
                    None,
                    ordering=ordering,
                    policy=policy or RetryPolicy(),
                    transactional=transactional,
                )
            )

    def _wake(self) -> None:
        self.woken = True

    @property
    def subscriptions(self) -> list[Subscription]:
        return list(self.engine.subscriptions.values())

    def claim_all(self) -> None:
        for claim in self.database.claim(self.id, list(self.database.claims)):
            self.engine.on_claimed(claim, self.now_s)

    def step(self) -> Exchange | Resolve | Wait:
        """Carry out one command."""
        self.database.now_s = max(self.database.now_s, self.now_s)
        command = self.engine.next_command(self.now_s)
        if isinstance(command, Exchange):
            self.answer(command)
        elif isinstance(command, Resolve):
            answers = self.database.resolve(self.id, [(p.key, p.epoch) for p in command.partitions])
            self._note(self.engine.on_resolved(command, answers, self.now_s))
        return command

    def _note(self, changes: Changes) -> Changes:
        for name in ("lost", "released", "buried", "refused"):
            getattr(self.changes, name).extend(getattr(changes, name))
        return changes

    def answer(self, command: Exchange) -> Changes:
        return self.report(command, Request.of(command))

    def report(self, command: Exchange, request: Request) -> Changes:
        """Carry out a request and report its answer."""
        self.database.now_s = max(self.database.now_s, self.now_s)
        settled, released, due = commit(self.database, self.id, request)
        rows, evidence, parked = read(self.database, request)
        return self._note(self.engine.on_exchanged(command, settled, released, rows, evidence, due, parked, self.now_s))

    def until_waiting(self, most: int = 100) -> Wait:
        """Carry out commands until there is nothing to do at this time."""
        for _ in range(most):
            command = self.step()
            if isinstance(command, Wait):
                return command
        raise AssertionError(f"no Wait within {most} commands at {self.now_s}")

    def until_exchange(self, most: int = 1000) -> Exchange:
        """Move the clock from Wait to Wait until there is an exchange, and return it, not carried out."""
        for _ in range(most):
            command = self.engine.next_command(self.now_s)
            if isinstance(command, Exchange):
                return command
            assert isinstance(command, Wait), command
            self.now_s = max(self.now_s, command.until_s)
        raise AssertionError(f"no Exchange within {most} commands")

    def pass_time(self, seconds: float) -> None:
        """Let time go by, carrying out what becomes due."""
        end_s = self.now_s + seconds
        until_s = self.until_waiting().until_s
        while until_s < end_s:
            assert until_s > self.now_s, f"waits for {until_s}, which is over at {self.now_s}: the shell would spin"
            self.now_s = until_s
            until_s = self.until_waiting().until_s
        self.now_s = end_s
        self.until_waiting()

    def lose_answer(self, *, committed: bool) -> None:
        """The next exchange's connection breaks, after or before its COMMIT."""
        command = self.until_exchange()
        if committed:
            commit(self.database, self.id, Request.of(command))
        self.engine.on_failed(command)
        self.engine.on_reconnected()

    def start(self, max_count: int = 1) -> list[Message]:
        """Hand over."""
        return self.engine.take(self.subscriptions, max_count, self.now_s)

    def take(self, max_count: int = 1) -> list[int]:
        """Hand over; returns offsets."""
        return [message.offset for message in self.start(max_count)]

    def ack(self, message: Message) -> None:
        self.engine.ack(message.delivery, self.now_s)

    def nack(self, message: Message, error: BaseException | None = None, delay_s: float | None = None) -> object:
        return self.engine.fail(message.delivery, error, NACK, self.now_s, 1.0, delay_s=delay_s)

    def handle(self, count: int) -> list[int]:
        """Hand over and ack messages one after the other; returns their offsets."""
        offsets = []
        for _ in range(count):
            for message in self.start():
                offsets.append(message.offset)
                self.ack(message)
        return offsets

    def die(self) -> None:
        """The process is killed; what it may have been running is charged, and its claims are free."""
        self.database.coordinators[self.id].lease_until_s = float("-inf")
        assert self.database.reap(float("inf")) == [self.id]
