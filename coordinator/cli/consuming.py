"""Messages to lines on standard output; each is acked when its line is out."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING

from coordinator.cli import exits
from coordinator.cli.output import note, plain, timestamp
from coordinator.errors import FencedError, UnavailableError
from coordinator.model import value_text

if TYPE_CHECKING:
    from coordinator.app import Coordinator
    from coordinator.consumer.blocking import Consumer
    from coordinator.model import GroupOffset, Message

# One write and one flush for so many messages, at most.
_MAX_BATCH = 500
# How long a signal may have to wait until it is noticed.
_POLL_S = 0.2
# Who waits for the end is told why, once in so long.
_PATIENCE_S = 10.0


class Stop:
    """Set by the first SIGINT or SIGTERM; `signal_number` says by which."""

    signal_number: int | None = None


def consume(
    app: "Coordinator",
    topics: Sequence[str],
    *,
    group: str,
    start: str | datetime,
    count: int | None,
    exit_at_end: bool,
) -> int:
    """Write lines until the end that was asked for, or a signal; return the exit code."""
    out = sys.stdout.buffer
    left = count
    at_end = False
    told_s = time.monotonic()
    with stopping() as stop, app.consumer(*topics, group=group, start=start, auto_ack=False) as consumer:
        while stop.signal_number is None and left != 0 and not at_end:
            wanted = _MAX_BATCH if left is None else min(left, _MAX_BATCH)
            batch = consumer.poll(max_messages=wanted, timeout_s=_POLL_S)
            if not batch:
                if exit_at_end:
                    behind = _behind(app, consumer, group, topics)
                    at_end = not behind
                    if behind and time.monotonic() >= told_s + _PATIENCE_S:
                        told_s = time.monotonic()
                        note(f"waiting for the end: {'; '.join(map(_told, behind))}")
                continue
            # In this order, and flushed between: a message whose line is still in our buffer when the pipe breaks
            # must be delivered again.
            out.write(b"".join(map(line_of, batch)))
            out.flush()
            for message in batch:
                _settle(message.ack)
            if left is not None:
                left -= len(batch)
        # Leaving the consumer writes the acks too, but does not tell which claims were lost before.
        _settle(consumer.commit)
    if at_end or left == 0 or (count is None and not exit_at_end):
        return exits.OK
    return exits.TERMINATED if stop.signal_number == signal.SIGTERM else exits.INTERRUPTED


def _behind(app: "Coordinator", consumer: "Consumer", group: str, topics: Sequence[str]) -> "list[GroupOffset | None]":
    """Return where the group has not read and settled everything, whoever owns it; None: the database does not say.

    A member that was killed owns its partitions until its lease is over, and another one may be slow or paused. Of our own
    partitions the consumer knows better, but only of those that were its own before it was asked.
    """
    owned = consumer.assignment()
    ended = consumer.at_end()
    try:
        found = [place for place in app.group_offsets(group) if place.topic in topics and place.lag > 0]
    except UnavailableError:
        return [None]
    if ended:
        return [
            place
            for place in found
            if str(place.member_id) != consumer.member_id or (place.topic, place.partition) not in owned
        ]
    return list(found) or [None]


def _told(place: "GroupOffset | None") -> str:
    if place is None:
        return "not known yet"
    owner = "without an owner" if place.client_id is None else f"of {place.client_id} on {place.host}"
    paused = ", paused" if place.paused else ""
    return f"{place.topic}/{place.partition} ({owner}{paused}) has up to {place.lag} not settled"


def _settle(call: Callable[[], None]) -> None:
    try:
        call()
    except FencedError as error:
        # The partition has a new owner, and the message is delivered to it, too. Its line is out; the rest is still ours.
        note(f"warning: delivered again to another member: {error}")


@contextmanager
def stopping() -> Iterator[Stop]:
    """Let the first signal set a flag, so that what is being written gets done; the second one interrupts at once."""
    stop = Stop()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.signal_number is not None:
            raise KeyboardInterrupt
        stop.signal_number = number

    former = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def line_of(message: "Message") -> bytes:
    """Return the message as a line of JSON; its payload, where it is JSON, as the publisher wrote it."""
    head = json.dumps(
        {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "key": message.key,
            "headers": message.headers,
            "message_id": plain(message.message_id),
            "published_at": timestamp(message.published_at),
            "attempt": message.attempt,
            "content_type": message.content_type,
        },
        ensure_ascii=False,
    )
    return f'{head[:-1]}, "value": {value_text(message.payload)}}}\n'.encode("utf-8", "backslashreplace")
