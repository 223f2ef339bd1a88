"""AsyncCoordinator: the face that users of asyncio meet; the twin of `app`."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload
from uuid import UUID

from coordinator.consumer.aio import AsyncConsumer, AsyncWorkers
from coordinator.consumer.aio_runtime import AsyncRuntime
from coordinator.consumer.handlers import Handler, is_async
from coordinator.consumer.handlers import register as enter
from coordinator.consumer.options import Start
from coordinator.consumer.status import Status
from coordinator.db.blockers import ablockers
from coordinator.db.connect import AsyncPool, aconnect
from coordinator.db.drive import afollow
from coordinator.db.uninterrupted import uninterrupted
from coordinator.dead_letters import AsyncDeadLetters
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
from coordinator.operations import AsyncOperations
from coordinator.producer.aio import AsyncProducer
from coordinator.producer.encode import OnDuplicate
from coordinator.protocol import admin, groups, messages, observe, topics
from coordinator.protocol.check import flag, int4, int8, no_group
from coordinator.protocol.observe import GroupGauge
from coordinator.protocol.statement import Flow, Statement
from coordinator.protocol.topics import DEFAULT_RETENTION
from coordinator.settings import checked_id
from coordinator.signals import loop_signals

if TYPE_CHECKING:
    from coordinator.serving.http import Route

log = logger()

T = TypeVar("T")
H = TypeVar("H", bound=Handler)


class AsyncCoordinator(Face, AsyncOperations):
    """Publish and consume from asyncio: `Coordinator` with the same names. For one event loop."""

    _pool_made: AsyncPool | None = None
    _consumers: Sequence[AsyncConsumer] = ()
    _producer_made: AsyncProducer | None = None
    _running: AsyncRuntime | None = None

    # ---- topics

    async def create_topic(
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
        """`Coordinator.create_topic`."""
        return await self._execute(
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

    async def topics(self) -> list[TopicInfo]:
        """`Coordinator.topics`."""
        return await self._execute(topics.describe_topics())

    async def topic(self, name: str) -> TopicInfo:
        """`Coordinator.topic`."""
        return (await self._execute(topics.describe_topics([name])))[0]

    async def rotate(self, topic: str) -> int:
        """`Coordinator.rotate`."""
        segment = await self._execute(topics.add_segment(topic))
        await self._execute(topics.open_segment(topic, segment))
        return segment

    # ---- publishing

    @overload
    async def publish(
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
    async def publish(
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
    async def publish(
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
        """`Coordinator.publish`; connection is a psycopg AsyncConnection."""
        message = Outgoing(
            value, key, headers, message_id, correlation_id, traceparent, partition, dedup_key, delay_s, deliver_at
        )
        batch = await self._producer.publish_many(
            topic, [message], wake=wake, on_duplicate=on_duplicate, connection=connection
        )
        return batch[0]

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[Outgoing | object],
        *,
        on_duplicate: OnDuplicate = "return",
        wake: bool = True,
        connection: object = None,
    ) -> Sequence[Published | Scheduled]:
        """`Coordinator.publish_many`."""
        return await self._producer.publish_many(
            topic, messages, wake=wake, on_duplicate=on_duplicate, connection=connection
        )

    # ---- reading

    async def peek(
        self, topic: str, *, partition: int | None = None, from_offset: int = 0, limit: int = 10
    ) -> list[Message]:
        """`Coordinator.peek`."""
        int4("limit", limit, 1)
        int8("from_offset", from_offset, 0)
        partitions = range((await self.topic(topic)).partitions) if partition is None else [partition]
        found: list[Message] = []
        for number in partitions:
            source = Source("", topic, number, 0, Peeked(self.codec.decode))
            rows = await self._execute(messages.peek(topic, number, from_offset, limit))
            found.extend(Message.peeked(row, source) for row in rows)
        return found

    async def message_states(self, topic: str, partition: int, offset: int) -> list[MessageState]:
        """What one message is to each group that reads the topic; moves nothing. Raises: NotFoundError."""
        return await self._execute(messages.message_states(topic, partition, offset))

    def consumer(
        self,
        *topics: str,
        group: str,
        start: Start = "earliest",
        auto_ack: bool = False,
        static_id: str | None = None,
        **options: Any,
    ) -> AsyncConsumer:
        """`Coordinator.consumer`: it joins with `async with`, or when it is first used."""
        chosen = consumer_options(topics, group, start, auto_ack, options)
        runtime = AsyncRuntime(self.dsn, self.schema, self.settings, self.client_id, checked_id(static_id))
        made = AsyncConsumer(runtime, chosen, self.codec.decode, auto_ack=auto_ack)
        self._consumers = [*(consumer for consumer in self._consumers if not consumer.closed), made]
        return made

    def subscribe(self, *topics: str, group: str, start: Start = "earliest", **options: Any) -> Callable[[H], H]:
        """`Coordinator.subscribe`. The handler is a coroutine function; another function is run in a thread of its own.

        With transactional it gets an AsyncConnection, and must be a coroutine function. When `run` ends before a handler
        does, the handler is cancelled; that is no failure of it.
        """
        chosen = subscribe_options(topics, group, start, options)

        def register(handler: H) -> H:
            if chosen.transactional and not is_async(handler):
                raise ConfigError(
                    f"transactional: wanted a coroutine function, which awaits its connection, found {handler!r}"
                )
            enter(self._registrations, handler, chosen, coroutines=True)
            return handler

        return register

    async def run(self, *, install_signal_handlers: bool = True) -> int:
        """`Coordinator.run`: until SIGTERM, SIGINT or `stop`; a second signal ends it sooner. Cancelled, it ends at once."""
        if not self._registrations:
            raise ConfigError(NOTHING_SUBSCRIBED)
        runtime = self._running = AsyncRuntime(self.dsn, self.schema, self.settings, self.client_id, self.static_id)
        workers = AsyncWorkers(runtime, self._registrations, self.codec.decode)
        settings = self.settings
        self._tell_subscriptions()
        async with self._aserved(settings.metrics_host, settings.metrics_port, runtime.findings):
            with self._stoppable(), loop_signals(wanted=install_signal_handlers) as signals:
                await workers.start()
                try:
                    while not (self._stop.is_set() or signals or runtime.failure or runtime.deleted):  # noqa: ASYNC110 - set by any thread
                        await asyncio.sleep(LOOK_S)
                    clean = await workers.stop(at_once=lambda: len(signals) > 1)
                except asyncio.CancelledError:
                    await uninterrupted(workers.stop(at_once=lambda: True))
                    raise
        if workers.left_count:
            log.warning(events.HANDLERS_LEFT, extra={"count": workers.left_count})
        runtime.check()
        return 0 if clean else 1

    async def maintain(self, *, once: bool = False, install_signal_handlers: bool = True) -> Done:
        """`Coordinator.maintain`, in a thread: nearly all of it is waiting for the server. Cancelled, it ends soon."""
        where = self._maintained()
        if once:
            return await asyncio.to_thread(maintenance.once, *where)
        left = threading.Event()
        with self._stoppable(), loop_signals(wanted=install_signal_handlers) as signals:
            try:
                await asyncio.to_thread(
                    maintenance.run,
                    *where,
                    stopped=lambda: self._stop.is_set() or bool(signals) or left.is_set(),
                )
            finally:
                left.set()
        return Done()

    async def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 9187,
        *,
        pages: "Mapping[str, Route] | None" = None,
        install_signal_handlers: bool = True,
    ) -> None:
        """`Coordinator.serve`; pages are plain functions, called in threads of the server. Cancelled, it ends soon."""
        async with self._aserved(host, port, list, pages):
            await self.maintain(install_signal_handlers=install_signal_handlers)

    async def group_gauges(self) -> list[GroupGauge]:
        """`Coordinator.group_gauges`."""
        return await self._execute(observe.group_gauges())

    async def execute(self, statement: Statement[T]) -> T:
        """`Coordinator.execute`."""
        return await self._execute(statement)

    async def gauges(self) -> Reading:
        """`Coordinator.gauges`."""
        from coordinator.serving.gauges import read_gauges  # noqa: PLC0415 - only for who asks for it

        return await self._drive(read_gauges())

    async def health(self, limits: Limits | None = None, group: str | None = None) -> list[Finding]:
        """`Coordinator.health`."""
        return await self._drive(examine(limits or Limits(), group))

    def status(self) -> Status | None:
        """What `run` is doing right now: handlers and for how long, what waits and why; None where it does not run."""
        return None if self._running is None else self._running.status()

    def stop(self) -> None:
        """Make `run`, `serve` or `maintain` return; from any thread, task or handler."""
        self._stop.set()

    # ---- groups

    async def groups(self) -> list[GroupInfo]:
        """`Coordinator.groups`."""
        return await self._execute(admin.list_groups())

    async def group_offsets(self, group: str) -> list[GroupOffset]:
        """`Coordinator.group_offsets`."""
        found = await self._execute(admin.group_offsets(group))
        if not found and group not in (known := [info.name for info in await self.groups()]):
            raise no_group(group, known)
        return found

    async def group_members(self, group: str | None = None) -> list[GroupMember]:
        """`Coordinator.group_members`."""
        return await self._execute(admin.group_members(group))

    async def members(self, *, dead: bool = False) -> list[CoordinatorInfo]:
        """`Coordinator.members`."""
        return await self._execute(admin.list_coordinators(dead=dead))

    async def hand_overs(self, group: str | None = None) -> list[HandOver]:
        """`Coordinator.hand_overs`."""
        return await self._execute(admin.hand_overs(group))

    async def blocked_claims(self) -> list[BlockedClaim]:
        """`Coordinator.blocked_claims`."""
        found: list[BlockedClaim] = []
        for stuck in await self._execute(groups.stuck_claims(None)):
            probe = await aconnect(self.dsn, self.settings.connect_timeout_s, "coordinator probe")
            try:
                async with self._pool.connection() as asking:
                    holders, _ = await ablockers(asking, probe, self.schema, stuck.key)
            finally:
                await probe.close()
            found.append(BlockedClaim(stuck.group, stuck.topic, stuck.key.partition, stuck.owner, tuple(holders)))
        return found

    async def evict(self, member_id: UUID | str) -> None:
        """`Coordinator.evict`."""
        await self._execute(groups.evict(checked_member(member_id)))

    async def drain(self, member_id: UUID | str, *, on: bool = True) -> None:
        """`Coordinator.drain`."""
        await self._execute(groups.drain(checked_member(member_id), on=flag("on", on)))

    # ---- life

    def dead_letters(self, group: str) -> AsyncDeadLetters:
        """`Coordinator.dead_letters`."""
        return AsyncDeadLetters(self._drive, group, self.settings.max_parked)

    async def close(self) -> None:
        """`Coordinator.close`."""
        self._closed = True
        consumers = self._consumers if os.getpid() == self._pid else []
        try:
            await asyncio.gather(*(consumer.close() for consumer in consumers), return_exceptions=True)
        finally:
            if self._pool_made is not None:
                await self._pool_made.close()
            self._stop_embedded()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _pool(self) -> AsyncPool:
        self._check_open()
        if self._pool_made is None:
            self._pool_made = self._pool_of(AsyncPool)
        return self._pool_made

    @property
    def _producer(self) -> AsyncProducer:
        self._check_open()
        if self._producer_made is None:
            self._producer_made = AsyncProducer(self._pool, self.schema, self.codec)
        return self._producer_made

    @asynccontextmanager
    async def _aserved(
        self,
        host: str,
        port: int | None,
        findings: Callable[[], list[Finding]],
        pages: "Mapping[str, Route] | None" = None,
    ) -> AsyncIterator[None]:
        """`_served`, whose end waits for threads: not in the loop."""
        serving = self._served(host, port, findings, pages)
        serving.__enter__()
        try:
            yield
        finally:
            await uninterrupted(asyncio.to_thread(serving.__exit__, None, None, None))

    async def _execute(self, statement: Statement[T]) -> T:
        async with self._pool.connection() as connection:
            return await self._pool.run(statement, connection)

    async def _drive(self, flow: Flow[T]) -> T:
        async with self._pool.connection() as connection:
            return await afollow(flow, lambda statement: self._pool.run(statement, connection))
