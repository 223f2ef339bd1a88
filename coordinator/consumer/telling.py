"""What the consumer shells log, with its fields, and the hooks for dead letters; the same for both shells."""

from collections.abc import Iterable, Sequence
from heapq import nsmallest

from coordinator.consumer.options import Options
from coordinator.consumer.pacing import is_hung
from coordinator.core.deliveries import Verdict
from coordinator.core.loop import Changes
from coordinator.core.partition import Partition
from coordinator.model import Delivery, Message
from coordinator.observe import events
from coordinator.observe.logs import logger, said
from coordinator.settings import Settings

log = logger()


def tell_changes(changes: Changes, options: Sequence[Options]) -> list[object]:
    """Log what a report brought, pass dead letters on to the hooks, and return what those returned."""
    for partition in changes.lost:
        log.warning(events.PARTITION_LOST, extra=partition_fields(partition))
    for partition in changes.released:
        log.info(events.PARTITION_RELEASED, extra=partition_fields(partition))
    for partition, reason in changes.refused:
        log.error(events.DEAD_LETTER_REFUSED, extra={**partition_fields(partition), "error": reason})
    returned: list[object] = []
    for partition, entry in changes.buried:
        letter = {
            **partition_fields(partition),
            "offset": entry["offset"],
            "reason": entry["reason"],
            "error": entry["error"]["error"],
            "attempts": entry["attempts"],
        }
        # The error is users' text, and may quote the message; hooks and the table have it.
        facts = {name: value for name, value in letter.items() if name != "error"}
        log.error(events.DELIVERY_DEAD_LETTERED, extra=facts)
        for option in options:
            if option.group == letter["group"] and letter["topic"] in option.topics and option.on_dead_letter:
                try:
                    returned.append(option.on_dead_letter(letter))
                except Exception:
                    log.exception(events.HOOK_FAILED, extra=facts)
    return returned


def tell_late(slow: Sequence[Delivery], late: Sequence[tuple[Delivery, Verdict]], now_s: float) -> None:
    """Log deadlines that have passed, and handlers that take longer than the visibility timeout."""
    for delivery in slow:
        log.warning(events.HANDLER_SLOW, extra={**delivery_fields(delivery), "running_s": now_s - delivery.started_s})
    for delivery, verdict in late:
        log.warning(
            events.DEADLINE_PASSED,
            extra={**delivery_fields(delivery), "error": verdict.message, "reason": verdict.reason},
        )


def tell_verdict(message: Message, verdict: Verdict | None) -> None:
    """Log what will become of a failed message; nothing where its delivery was not live any more."""
    if verdict is not None:
        fields = {"error": verdict.message, "delay_s": verdict.delay_s, "reason": verdict.reason}
        log.warning(events.DELIVERY_NACKED, extra={**place_of(message), **fields})


def tell_refused(message: Message, error: BaseException) -> None:
    """Log that what a handler said does not count."""
    log.warning(events.ACK_REFUSED, extra={**place_of(message), "error": said(error)})


def partition_fields(partition: Partition) -> dict[str, object]:
    """Return the log fields that name a claim."""
    source = partition.source
    return {"group": source.group, "topic": source.topic, "partition": source.partition, "epoch": source.epoch}


def delivery_fields(delivery: Delivery) -> dict[str, object]:
    return {**partition_fields(delivery.owner), "offset": delivery.offset, "attempt": delivery.attempt}


def places_of(running: Iterable[Delivery]) -> list[str]:
    """Return the names of the deliveries that were handed over first, at most ten."""
    oldest = nsmallest(10, running, key=lambda delivery: delivery.started_s)
    return [
        f"{source.topic}/{source.partition}@{delivery.offset} of {source.group}"
        for delivery in oldest
        for source in (delivery.owner.source,)
    ]


def place_of(message: Message) -> dict[str, object]:
    """Return the log fields that name a delivery."""
    return {
        "group": message.group,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "attempt": message.attempt,
    }


def work_hangs(busy_since_s: float | None, settings: Settings, now_s: float) -> bool:
    """Tell whether the work loop does not come round (a hook that never returns): its process must not live by heartbeats."""
    hangs = is_hung(busy_since_s, now_s, settings.round_trip_timeout_s, settings.connect_timeout_s)
    if hangs and busy_since_s is not None:
        log.error(events.LOOP_HUNG, extra={"loop": "work", "hung_s": now_s - busy_since_s})
    return hangs
