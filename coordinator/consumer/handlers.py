"""What the workers of both shells do around a handler."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.consumer.options import Options
from coordinator.core.loop import Engine
from coordinator.core.subscription import Subscription
from coordinator.errors import HandlerError
from coordinator.model import BYTES_CONTENT, Message

log = logging.getLogger("coordinator")

Decode = Callable[[bytes], Any]
Handler = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Registration:
    """One @subscribe."""

    handler: Handler
    options: Options

    def subscriptions(self, engine: Engine) -> list[Subscription]:
        """Return what it reads, once its group is joined."""
        return [
            subscription
            for subscription in engine.subscriptions.values()
            if subscription.group == self.options.group and subscription.topic in self.options.topics
        ]


def decoded(message: Message, decode: Decode) -> Any:
    """Decode a payload; bytes stay bytes.

    Raises:
        HandlerError: It is not what the codec takes.
    """
    if message.content_type == BYTES_CONTENT:
        return message.payload
    try:
        return decode(message.payload)
    except Exception as error:
        raise HandlerError(
            f"{message.topic}/{message.partition}@{message.offset}: the payload is not what the codec takes: {error}"
        ) from error


def keep_alive(batch: Sequence[Message], until_s: float) -> None:
    """Their deadlines are moved on until then, as long as their handler is at it."""
    for message in batch:
        if message.delivery is not None:
            message.delivery.extend_until_s = until_s
