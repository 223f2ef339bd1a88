"""From the commands of core.loop to the parameters of sql/functions/deliveries, and back; the same for both shells."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg import pq

from coordinator.core.loop import Changes, Engine, Exchange, Resolve
from coordinator.core.partition import Partition
from coordinator.core.ranges import compress
from coordinator.errors import ConfigError, HandlerError, StaleEpochError, UnavailableError
from coordinator.model import Message, PartitionKey, Resolved
from coordinator.protocol import deliveries
from coordinator.protocol.deliveries import Begun, ClaimArrays, ExchangeAnswer, ExchangeCall
from coordinator.protocol.statement import Statement

_ENDED = "the handler has ended its transaction, which is to be committed together with the ack"


def exchange_call(coordinator: UUID, exchange: Exchange) -> ExchangeCall:
    """Return the one round trip that an Exchange command means."""
    return ExchangeCall(
        settle=deliveries.settle_parameters(
            coordinator,
            _claims(exchange.partitions),
            [(partition.seq, partition.hwm) for partition in exchange.partitions],
            exchange.settled,
            exchange.wants,
            exchange.hard,
        ),
        release=deliveries.release_parameters(coordinator, _claims(exchange.releases)) if exchange.releases else None,
        fetch=deliveries.fetch_parameters(
            _claims(exchange.fetching), [partition.position for partition in exchange.fetching]
        )
        if exchange.fetching
        else None,
        gaps=deliveries.gap_parameters(
            [(partition.key.topic_id, partition.key.partition) for partition, _ in exchange.gaps],
            [ranges for _, ranges in exchange.gaps],
        )
        if exchange.gaps
        else None,
        due=deliveries.due_parameters(coordinator, _claims(exchange.parked), exchange.due_limits, exchange.due_ages_s)
        if exchange.parked
        else None,
        parked=deliveries.parked_parameters(
            _claims(exchange.parked), [compress(partition.handed) for partition in exchange.parked]
        )
        if exchange.parked
        else None,
    )


def on_answer(engine: Engine, exchange: Exchange, answer: ExchangeAnswer, now_s: float) -> Changes:
    """Report the answer of a round trip to the engine."""
    return engine.on_exchanged(
        exchange, answer.settled, answer.released, answer.rows, answer.gaps, answer.due, answer.parked, now_s
    )


def resolve_statement(coordinator: UUID, resolve: Resolve) -> Statement[list[Resolved]]:
    """Return the statement that a Resolve command means."""
    return deliveries.resolve(coordinator, _claims(resolve.partitions))


def check_idle(connection: psycopg.BaseConnection[Any]) -> None:
    """Look whether a handler's transaction can begin on a connection.

    Raises:
        ConfigError: It is in a transaction already, whose end nobody here would see, or in pipeline mode, in which the COMMIT
            would only be sent when the block ends.
    """
    if connection.info.transaction_status != pq.TransactionStatus.IDLE:
        raise ConfigError("the connection is in a transaction; wanted one that is idle, to begin and commit here")
    if connection.pgconn.pipeline_status:
        raise ConfigError(
            "the connection is in pipeline mode; wanted one that is not: a pipeline may be within the block"
        )


def check_open(connection: psycopg.BaseConnection[Any]) -> None:
    """Look whether a handler's transaction is still there to be committed with its ack.

    Raises:
        HandlerError: The handler has ended it, by a statement of its own, or has left a pipeline, a COPY or a stream of rows open
            on its connection, which is closed then.
    """
    if connection.pgconn.pipeline_status:
        # What it holds back can be neither committed nor rolled back in order, and the next one must not get it.
        connection.pgconn.finish()
        raise HandlerError("the handler has left a pipeline open on the connection of its transaction")
    status = connection.info.transaction_status
    if status == pq.TransactionStatus.ACTIVE:
        # The ack would wait for the end of that, which nobody will bring about.
        connection.pgconn.finish()
        raise HandlerError(
            "the handler has left a COPY, or a stream of rows, open on the connection of its transaction"
        )
    if status == pq.TransactionStatus.IDLE:
        raise HandlerError(_ENDED)


def acked(xid: str | None) -> str:
    """Return the id of the transaction in which an ack was written.

    Raises:
        HandlerError: It was not written: the handler has ended its transaction, and begun another.
    """
    if xid is None:
        raise HandlerError(_ENDED)
    return xid


def ack_statements(coordinator: UUID, messages: Sequence[Message], began_us: int) -> Iterator[Statement[str | None]]:
    """Yield one ack per claim, in the order of claims: two batches can't wait for each other crosswise.

    Args:
        coordinator: The owner.
        messages: Of one transaction.
        began_us: When it began, as `idle_limit` has told.

    Raises:
        StaleEpochError: A claim is known to be lost. Not left to the database alone: in another history of it, this
            coordinator may own the claim again, under the same epoch.
    """
    by_claim: dict[PartitionKey, list[Message]] = {}
    for message in messages:
        assert message.delivery is not None
        by_claim.setdefault(message.delivery.owner.key, []).append(message)
    for key, mine in sorted(by_claim.items()):
        delivery = mine[0].delivery
        if delivery is not None and delivery.owner.lost:
            raise StaleEpochError(
                f"epoch {mine[0].epoch} of {mine[0].topic}/{mine[0].partition} is over", held=mine[0].epoch
            )
        offsets = [message.offset for message in mine]
        replays = [m.delivery.facts.replays if m.delivery and m.delivery.facts else 0 for m in mine]
        yield deliveries.ack(coordinator, key, mine[0].epoch, offsets, replays, began_us)


def ack_question(messages: Sequence[Message]) -> Statement[bool]:
    """Return the question whether a transaction's acks are there: by the first of them, as they are there together or not."""
    message = messages[0]
    delivery = message.delivery
    assert delivery is not None
    replay = delivery.facts.replays if delivery.facts is not None else 0
    return deliveries.ack_kept(delivery.owner.key, message.epoch, message.offset, replay)


def idle_limit(messages: Sequence[Message], visibility_timeout_s: float, now_s: float) -> Statement[Begun]:
    """Return what limits a handler's transaction: it may be idle for as long as its deadline allows, and no longer."""
    delivery = messages[0].delivery
    assert delivery is not None
    return deliveries.limit_idle(max(visibility_timeout_s, delivery.extend_until_s - now_s))


def check_history(told: str | None, wanted: str | None) -> None:
    """Refuse a handler's transaction in another history of the database than the one its messages were read in (R4).

    Raises:
        UnavailableError: It is another one.
    """
    if told is not None and wanted is not None and told != wanted:
        raise UnavailableError(
            "the database goes on with another history, which may lack this message: it is left to its owner"
        )


def is_committed(outcome: str | None) -> bool:
    """Say what became of a COMMIT whose answer was lost, once it is no longer in progress.

    Raises:
        UnavailableError: The database goes on with another history. What it has of the transaction is right: an ack that
            is there keeps the message from coming again, and nobody needs to know.
    """
    if outcome == deliveries.OTHER_HISTORY:
        raise UnavailableError(
            "the connection was lost in the commit, and the database goes on with another history: what it has is not known here"
        )
    return outcome == "committed"


def release_statement(coordinator: UUID, partitions: Sequence[Partition]) -> Statement[int]:
    """Return the statement that gives claims back outside of an exchange."""
    parameters = deliveries.release_parameters(coordinator, _claims(partitions))
    return Statement("release", deliveries.RELEASE, parameters, lambda rows: int(rows[0][0]))


def _claims(partitions: Sequence[Partition]) -> ClaimArrays:
    return ClaimArrays.of([(partition.key, partition.epoch) for partition in partitions])
