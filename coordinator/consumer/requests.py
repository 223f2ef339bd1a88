"""From the commands of core.loop to the parameters of sql/functions/deliveries; the same for both shells."""

from collections.abc import Sequence
from uuid import UUID

from coordinator.core.loop import Exchange, Resolve
from coordinator.core.partition import Partition
from coordinator.core.ranges import compress
from coordinator.model import Resolved
from coordinator.protocol import deliveries
from coordinator.protocol.deliveries import ClaimArrays, ExchangeCall
from coordinator.protocol.statement import Statement

# Parked messages handed out per claim and exchange.
_MAX_DUE = 200


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
        due=deliveries.due_parameters(coordinator, _claims(exchange.parked), [_MAX_DUE] * len(exchange.parked))
        if exchange.parked
        else None,
        parked=deliveries.parked_parameters(
            _claims(exchange.parked), [compress(partition.handed) for partition in exchange.parked]
        )
        if exchange.parked
        else None,
    )


def resolve_statement(coordinator: UUID, resolve: Resolve) -> Statement[list[Resolved]]:
    """Return the statement that a Resolve command means."""
    return deliveries.resolve(coordinator, _claims(resolve.partitions))


def _claims(partitions: Sequence[Partition]) -> ClaimArrays:
    return ClaimArrays.of([(partition.key, partition.epoch) for partition in partitions])
