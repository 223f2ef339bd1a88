"""Publishing from threads."""

import time
from collections.abc import Iterable
from typing import Any

import psycopg

from coordinator.db import publish
from coordinator.db.connect import Pool, callers
from coordinator.db.drive import execute
from coordinator.db.publish import PublishedBatch
from coordinator.model import Outgoing
from coordinator.observe.meter import METER
from coordinator.producer.encode import Codec, OnDuplicate, outgoing, publish_call
from coordinator.producer.limits import KnownLimits
from coordinator.protocol.topics import max_message_bytes


class Producer:
    """Publishes on connections of a pool, or on the caller's."""

    def __init__(self, pool: Pool, schema: str, codec: Codec) -> None:
        self._pool = pool
        self._schema = schema
        self._codec = codec
        self._limits = KnownLimits()

    def publish_many(
        self,
        topic: str,
        messages: Iterable[Outgoing | object],
        *,
        wake: bool,
        on_duplicate: OnDuplicate,
        connection: object,
    ) -> PublishedBatch:
        """Publish a batch in one statement; in the caller's transaction where a connection is given.

        Raises:
            NotFoundError: No such topic.
            InvalidInputError, MessageTooLargeError: A message cannot be stored; nothing was sent.
            DuplicateError: A dedup key was used before, and on_duplicate is "raise".
            BacklogError: The topic's slowest group is too far behind.
            PoolExhaustedError: All connections are in use; nothing was sent.
            UnavailableError: No connection; where it was lost after the call was sent, the outcome is unknown.
            psycopg.Error: What belongs to the caller's transaction, such as a serialization failure.
        """
        batch = outgoing(topic, messages, wake=wake)
        if connection is not None:
            return self._run(callers(connection), topic, batch, wake, on_duplicate, ours=False)
        with self._pool.connection() as own:
            return self._run(own, topic, batch, wake, on_duplicate, ours=True)

    def _run(
        self,
        connection: psycopg.Connection[Any],
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
            limit = self._pool.run(look, connection) if ours else execute(look, connection, self._schema)
            self._limits.note(topic, limit, time.monotonic())
        sent = publish_call(topic, batch, wake=wake, codec=self._codec, limit_bytes=limit, on_duplicate=on_duplicate)
        run = publish.run if self._pool.keeps_session or not ours else publish.run_alone
        published = run(connection, self._schema, topic, sent)
        METER.published(topic, len(batch))
        return published
