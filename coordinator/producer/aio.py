"""Publishing from asyncio."""

import time
from collections.abc import Iterable
from typing import Any

import psycopg

from coordinator.db import publish
from coordinator.db.connect import AsyncPool, acallers
from coordinator.db.drive import aexecute
from coordinator.db.publish import PublishedBatch
from coordinator.model import Outgoing
from coordinator.observe.meter import METER
from coordinator.producer.encode import Codec, OnDuplicate, outgoing, publish_call
from coordinator.producer.limits import KnownLimits
from coordinator.protocol.topics import max_message_bytes


class AsyncProducer:
    """`Producer` for asyncio."""

    def __init__(self, pool: AsyncPool, schema: str, codec: Codec) -> None:
        self._pool = pool
        self._schema = schema
        self._codec = codec
        self._limits = KnownLimits()

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[Outgoing | object],
        *,
        wake: bool,
        on_duplicate: OnDuplicate,
        connection: object,
    ) -> PublishedBatch:
        """`Producer.publish_many`."""
        batch = outgoing(topic, messages, wake=wake)
        if connection is not None:
            return await self._run(acallers(connection), topic, batch, wake, on_duplicate, ours=False)
        async with self._pool.connection() as own:
            return await self._run(own, topic, batch, wake, on_duplicate, ours=True)

    async def _run(
        self,
        connection: psycopg.AsyncConnection[Any],
        topic: str,
        batch: list[Outgoing],
        wake: bool,
        on_duplicate: OnDuplicate,
        *,
        ours: bool,
    ) -> PublishedBatch:
        limit = self._limits.get(topic, time.monotonic())
        if limit is None:
            look = max_message_bytes(topic)
            limit = await (self._pool.run(look, connection) if ours else aexecute(look, connection, self._schema))
            self._limits.note(topic, limit, time.monotonic())
        sent = publish_call(topic, batch, wake=wake, codec=self._codec, limit_bytes=limit, on_duplicate=on_duplicate)
        run = publish.arun if self._pool.keeps_session or not ours else publish.arun_alone
        published = await run(connection, self._schema, topic, sent)
        METER.published(topic, len(batch))
        return published
