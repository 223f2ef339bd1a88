"""Coordinator: the face that users meet. Wires, decides nothing."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload
from uuid import UUID

from coordinator.consumer.blocking import Consumer, Workers
from coordinator.consumer.handlers import Handler, check_hook
from coordinator.consumer.handlers import register as enter
from coordinator.consumer.options import Start
from coordinator.consumer.runtime import Runtime
from coordinator.consumer.status import Status
from coordinator.db.blockers import blockers
from coordinator.db.connect import Pool, connect
from coordinator.db.drive import follow
from coordinator.dead_letters import DeadLetters
from coordinator.errors import ConfigError
from coordinator.face import (
    DEFAULT_MAX_MESSAGE_BYTES,
    LOOK_S,
    NOTHING_SUBSCRIBED,
    Face,
    Peeked,
    checked_member,
    consumer_options,
    subscribe_options,
)
from coordinator.maintenance import loop as maintenance
from coordinator.maintenance.loop import Done
from coordinator.model import (
    BlockedClaim,
    CoordinatorInfo,
    GroupInfo,
    GroupMember,
    GroupOffset,
    HandOver,
    Message,
    MessageState,
    Outgoing,
    Published,
    Retention,
    Scheduled,
    Source,
    TopicInfo,
)
from coordinator.observe import events
from coordinator.observe.health import Finding, Limits, examine
from coordinator.observe.logs import logger
from coordinator.observe.meter import Reading
from coordinator.operations import Operations
from coordinator.producer.blocking import Producer
from coordinator.producer.encode import OnDuplicate
from coordinator.protocol import admin, groups, messages, observe, topics
from coordinator.protocol.check import flag, int4, int8, no_group
from coordinator.protocol.observe import GroupGauge
from coordinator.protocol.statement import Flow, Statement
from coordinator.protocol.topics import DEFAULT_RETENTION
from coordinator.settings import checked_id
from coordinator.signals import collected_signals

if TYPE_CHECKING:
    from coordinator.serving.http import Route

log = logger()

T = TypeVar("T")
H = TypeVar("H", bound=Handler)


class Coordinator(Face, Operations):
    """Publish and consume from threads. May be shared by threads; not across a fork."""

    _pool_made: Pool | None = None
    _consumers: Sequence[Consumer] = ()
    _producer_made: Producer | None = None
    _running: Runtime | None = None

    # ---- topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        wake: bool = True,
        dedup_window_s: float | None = None,
        max_backlog: int | None = None,
        retention_s: float | None = DEFAULT_RETENTION.retention_s,
        retention_bytes: int | None = DEFAULT_RETENTION.retention_bytes,
        unconsumed: str = DEFAULT_RETENTION.unconsumed,
        segment_max_age_s: float | None = DEFAULT_RETENTION.segment_max_age_s,
        segment_max_bytes: int | None = DEFAULT_RETENTION.segment_max_bytes,
    ) -> bool:
        """Create a topic; False if it exists with as many partitions, whose settings are left as they are.

        Args:
            max_message_bytes: The largest payload it takes.
            wake: Wake waiting consumers with NOTIFY; else they poll.
            dedup_window_s: How long a dedup key, or a message_id that the publisher gives, keeps a second message with the
                same one out. None: message_ids are not compared, and dedup keys for a day.
            max_backlog: Refuse publishes while the slowest group has so many messages to settle.
            retention_s, retention_bytes, unconsumed, segment_max_age_s, segment_max_bytes: What is kept of it, see
                `model.Retention`: for a week, and for longer what a group has not passed.

        Raises:
            ConflictError: It exists with another number of partitions.
            InvalidInputError: A name or number that no topic can have.
        """
        return self._execute(
            topics.create_topic(
                name,
                partitions,
                max_message_bytes,
                wake=wake,
                dedup_window_s=dedup_window_s,
                max_backlog=max_backlog,
                retention=Retention(retention_s, retention_bytes, unconsumed, segment_max_age_s, segment_max_bytes),
            )
        )

    def topics(self) -> list[TopicInfo]:
        """All topics by name."""
        return self._execute(topics.describe_topics())

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises: NotFoundError."""
        return self._execute(topics.describe_topics([name]))[0]

    def rotate(self, topic: str) -> int:
        """Make the next segment and open it, in two transactions; returns its number. Raises: NotFoundError."""
        segment = self._execute(topics.add_segment(topic))
        self._execute(topics.open_segment(topic, segment))
        return segment

    # ---- publishing

    @overload
    def publish(
        self,
        topic: str,
        value: object,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        traceparent: str | None = None,
        partition: int | None = None,
        wake: bool = True,
        connection: object = None,
    ) -> Published: ...
    @overload
    def publish(
        self,
        topic: str,
        value: object,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        message_id: UUID | str | None = None,
        correlation_id: str | None = None,
        traceparent: str | None = None,
        partition: int | None = None,
        dedup_key: str | None = None,
        on_duplicate: OnDuplicate = "return",
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
        wake: bool = True,
        connection: object = None,
    ) -> Published | Scheduled: ...
    def publish(
        self,
        topic: str,
        value: object,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        message_id: UUID | str | None = None,
        correlation_id: str | None = None,
        traceparent: str | None = None,
        partition: int | None = None,
        dedup_key: str | None = None,
        on_duplicate: OnDuplicate = "return",
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
        wake: bool = True,
        connection: object = None,
    ) -> Published | Scheduled:
        """Publish one message, in a transaction of its own, or in the caller's where a connection is given.

        Args:
            connection: A psycopg connection, a SQLAlchemy session or connection, or a Django connection. The message exists
                when its transaction commits; nothing here commits it.
            wake: False leaves the NOTIFY out; needed before PREPARE TRANSACTION.
            dedup_key: Of messages with the same one within the topic's window only the first is published: a publish whose
                outcome is unknown is simply repeated. On a topic with a window, message_id counts as one.
            on_duplicate: "return" the first one's place, or "raise" DuplicateError.
            delay_s: Publish so many seconds from now.
            deliver_at: Publish then, an aware datetime; at once where it has passed.

        Returns:
            Its place; for a message with a time ahead, or a duplicate of such, when it is due.

        Raises:
            NotFoundError: No such topic.
            InvalidInputError: The message cannot be stored as it is; MessageTooLargeError if it is too large.
            DuplicateError: The dedup key was used within the window, and on_duplicate is "raise".
            BacklogError: The topic has a limit, and its slowest group is further behind. Nothing was published.
            PoolExhaustedError: All connections of the pool are in use. Nothing was published.
            UnavailableError: No database. If the connection was lost under way, the outcome is unknown.
        """
        message = Outgoing(
            value, key, headers, message_id, correlation_id, traceparent, partition, dedup_key, delay_s, deliver_at
        )
        return self._producer.publish_many(
            topic, [message], wake=wake, on_duplicate=on_duplicate, connection=connection
        )[0]

    def publish_many(
        self,
        topic: str,
        messages: Iterable[Outgoing | object],
        *,
        on_duplicate: OnDuplicate = "return",
        wake: bool = True,
        connection: object = None,
    ) -> Sequence[Published | Scheduled]:
        """Publish a batch in one statement, all or nothing; order is kept per partition. See `publish`."""
        return self._producer.publish_many(topic, messages, wake=wake, on_duplicate=on_duplicate, connection=connection)

    # ---- reading

    def peek(self, topic: str, *, partition: int | None = None, from_offset: int = 0, limit: int = 10) -> list[Message]:
        """Read messages without a group; moves nothing. Without a partition: up to `limit` of each.

        Raises:
            NotFoundError: No such topic or partition.
        """
        int4("limit", limit, 1)
        int8("from_offset", from_offset, 0)
        partitions = range(self.topic(topic).partitions) if partition is None else [partition]
        found: list[Message] = []
        for number in partitions:
            source = Source("", topic, number, 0, Peeked(self.codec.decode))
            rows = self._execute(messages.peek(topic, number, from_offset, limit))
            found.extend(Message.peeked(row, source) for row in rows)
        return found

    def message_states(self, topic: str, partition: int, offset: int) -> list[MessageState]:
        """What one message is to each group that reads the topic; moves nothing. Raises: NotFoundError."""
        return self._execute(messages.message_states(topic, partition, offset))

    def consumer(
        self,
        *topics: str,
        group: str,
        start: Start = "earliest",
        auto_ack: bool = False,
        static_id: str | None = None,
        **options: Any,
    ) -> Consumer:
        """Return a consumer of these topics in a group; it joins when it is first used.

        Args:
            start: Where a group starts that has not read a topic before: earliest, latest or a time.
            auto_ack: Each message is acked when the next is asked for.
            static_id: As for `run`, for this consumer alone; one that is the process's does not count here.
            options: ordering, max_attempts, max_crashes, retry, on_error, max_rate, on_dead_letter: see Options.

        Raises:
            ConfigError: A wrong argument.
        """
        chosen = consumer_options(topics, group, start, auto_ack, options)
        check_hook(chosen, coroutines=False)
        runtime = Runtime(self.dsn, self.schema, self.settings, self.client_id, checked_id(static_id))
        made = Consumer(runtime, chosen, self.codec.decode, auto_ack=auto_ack)
        self._consumers = [*(consumer for consumer in self._consumers if not consumer.closed), made]
        return made

    def subscribe(self, *topics: str, group: str, start: Start = "earliest", **options: Any) -> Callable[[H], H]:
        """Register a handler for `run`.

        It gets a message (with batch_size a list of them; with transactional a connection, too). It returns: acked. It raises:
        delivered again after a delay, and a dead letter when its attempts are spent; Retry and Reject say what they want.

        Args:
            start: Where a group starts that has not read a topic before: earliest, latest or a time.
            options: ordering, concurrency, max_attempts, max_crashes, retry, on_error, transactional, batch_size, max_rate,
                max_processing_s, on_dead_letter: see Options.

        Raises:
            ConfigError: A wrong argument.
        """
        chosen = subscribe_options(topics, group, start, options)

        def register(handler: H) -> H:
            enter(self._registrations, handler, chosen, coroutines=False)
            return handler

        return register

    def run(self, *, install_signal_handlers: bool = True) -> int:
        """Run the subscribed handlers until SIGTERM, SIGINT or `stop`, then finish, write, release and leave.

        Returns:
            0, or 1 if a handler did not finish in time and what it had was given back.

        Raises:
            ConfigError: Nothing is subscribed.
            DeletedError: Everything that is subscribed was deleted. While something is left, the process goes on with that, and
                is not ready (readyz): it does not do all that it is there for.
            CoordinatorError: What kept it from starting, or ended a background loop.
        """
        if not self._registrations:
            raise ConfigError(NOTHING_SUBSCRIBED)
        runtime = self._running = Runtime(self.dsn, self.schema, self.settings, self.client_id, self.static_id)
        workers = Workers(runtime, self._registrations, self.codec.decode)
        settings = self.settings
        self._tell_subscriptions()
        with (
            self._stoppable(),
            self._served(settings.metrics_host, settings.metrics_port, runtime.findings),
            collected_signals(wanted=install_signal_handlers) as signals,
        ):
            workers.start()
            while not (self._stop.is_set() or signals or runtime.failure or runtime.deleted):
                time.sleep(LOOK_S)
            clean = workers.stop(at_once=lambda: len(signals) > 1)
        if workers.left_count:
            log.warning(events.HANDLERS_LEFT, extra={"count": workers.left_count})
        runtime.check()
        return 0 if clean else 1

    def maintain(self, *, once: bool = False, install_signal_handlers: bool = True) -> Done:
        """Publish scheduled messages when they are due and forget old dedup keys, until SIGTERM, SIGINT or `stop`.

        Every consumer process does that by the way; call this where messages are scheduled and nothing of ours consumes.

        Args:
            once: Do what is to be done now, and return.

        Returns:
            With `once` what was done, else zeros.

        Raises:
            SchemaVersionError: The schema is not installed, or of another version.
            UnavailableError: There is no database at the start; later it is waited for.
        """
        where = self._maintained()
        if once:
            return maintenance.once(*where)
        with self._stoppable(), collected_signals(wanted=install_signal_handlers) as signals:
            maintenance.run(*where, stopped=lambda: self._stop.is_set() or bool(signals))
        return Done()

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 9187,
        *,
        pages: "Mapping[str, Route] | None" = None,
        install_signal_handlers: bool = True,
    ) -> None:
        """`maintain`, and serve metrics and health of the database over HTTP, until SIGTERM, SIGINT or `stop`.

        Args:
            host: The address to listen on; "0.0.0.0" for all of this machine's. Whoever reaches it may read.
            port: 0: any free port.
            pages: More to serve, by the first part of the path.

        Raises:
            ConfigError: The port is taken.
            SchemaVersionError, UnavailableError: As `maintain`.
        """
        with self._served(host, port, list, pages):
            self.maintain(install_signal_handlers=install_signal_handlers)

    def group_gauges(self) -> list[GroupGauge]:
        """Where all groups stand, with ages: `group_offsets` of all of them in one look, without owners' names."""
        return self._execute(observe.group_gauges())

    def execute(self, statement: Statement[T]) -> T:
        """Run a statement of the protocol on a connection of the pool; for tools of our own.

        Raises:
            UnavailableError: No database.
        """
        return self._execute(statement)

    def gauges(self) -> Reading:
        """The gauges of the database, as metrics have them, read now."""
        from coordinator.serving.gauges import read_gauges  # noqa: PLC0415 - only for who asks for it

        return self._drive(read_gauges())

    def health(self, limits: Limits | None = None, group: str | None = None) -> list[Finding]:
        """Look at all groups, or one, and return what is wrong.

        Raises:
            NotFoundError: No such group.
            UnavailableError: No database.
        """
        return self._drive(examine(limits or Limits(), group))

    def status(self) -> Status | None:
        """What `run` is doing right now: handlers and for how long, what waits and why; None where it does not run."""
        return None if self._running is None else self._running.status()

    def stop(self) -> None:
        """Make `run`, `serve` or `maintain` return; from any thread or handler.

        One that has not begun yet, in another thread, returns as soon as it has.
        """
        self._stop.set()

    # ---- groups

    def groups(self) -> list[GroupInfo]:
        """All groups by name."""
        return self._execute(admin.list_groups())

    def group_offsets(self, group: str) -> list[GroupOffset]:
        """Where a group stands in each partition. Raises: NotFoundError."""
        found = self._execute(admin.group_offsets(group))
        if not found and group not in (known := [info.name for info in self.groups()]):
            raise no_group(group, known)
        return found

    def group_members(self, group: str | None = None) -> list[GroupMember]:
        """Who takes part in a group, or in any."""
        return self._execute(admin.group_members(group))

    def members(self, *, dead: bool = False) -> list[CoordinatorInfo]:
        """All consumer processes; with `dead` also those that died within the last day."""
        return self._execute(admin.list_coordinators(dead=dead))

    def hand_overs(self, group: str | None = None) -> list[HandOver]:
        """Partitions that are not where the plan of a group, or of any, wants them, and since when."""
        return self._execute(admin.hand_overs(group))

    def blocked_claims(self) -> list[BlockedClaim]:
        """Claims that nobody alive owns and nobody can take, because somebody holds their rows; and who that is.

        Opens a connection for each, which waits for the row for a moment.
        """
        found: list[BlockedClaim] = []
        for stuck in self._execute(groups.stuck_claims(None)):
            with (
                self._pool.connection() as asking,
                closing(connect(self.dsn, self.settings.connect_timeout_s, "coordinator probe")) as probe,
            ):
                holders, _ = blockers(asking, probe, self.schema, stuck.key)
            found.append(BlockedClaim(stuck.group, stuck.topic, stuck.key.partition, stuck.owner, tuple(holders)))
        return found

    def evict(self, member_id: UUID | str) -> None:
        """End a process's rights now: its partitions are free, nothing is charged. If it lives, it comes back as a new member.

        Raises:
            NotFoundError: No such member, or it is dead.
        """
        self._execute(groups.evict(checked_member(member_id)))

    def drain(self, member_id: UUID | str, *, on: bool = True) -> None:
        """Take the work away from a process: it finishes what it runs, releases, and gets nothing until `on=False`.

        Raises:
            NotFoundError: No such member, or it is dead.
        """
        self._execute(groups.drain(checked_member(member_id), on=flag("on", on)))

    def dead_letters(self, group: str) -> DeadLetters:
        """What a group gave up on: list, get, stats, replay, purge, export. Asks the database nothing by itself."""
        return DeadLetters(self._drive, group, self.settings.max_parked)

    # ---- life

    def close(self) -> None:
        """Close its consumers, as their own `close` does, and the pool; publishing raises ClosedError from here on.

        A consumer that was not closed writes what is settled and gives back the rest, which may take a second or two. `run` is
        ended by `stop`.
        """
        self._closed = True
        # After a fork they are the parent's.
        consumers = [consumer for consumer in self._consumers if os.getpid() == self._pid]
        with ExitStack() as closing_all:
            closing_all.callback(self._stop_embedded)
            if self._pool_made is not None:
                closing_all.callback(self._pool_made.close)
            # At the same time: without a database each of them waits.
            threads = [threading.Thread(target=consumer.close, name="coordinator-close") for consumer in consumers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _pool(self) -> Pool:
        self._check_open()
        if self._pool_made is None:
            with self._making:
                if self._pool_made is None:
                    self._pool_made = self._pool_of(Pool)
        return self._pool_made

    @property
    def _producer(self) -> Producer:
        # Also where the caller brings the connection: what is closed is done with.
        self._check_open()
        if self._producer_made is None:
            self._producer_made = Producer(self._pool, self.schema, self.codec)
        return self._producer_made

    def _execute(self, statement: Statement[T]) -> T:
        with self._pool.connection() as connection:
            return self._pool.run(statement, connection)

    def _drive(self, flow: Flow[T]) -> T:
        with self._pool.connection() as connection:
            return follow(flow, lambda statement: self._pool.run(statement, connection))
