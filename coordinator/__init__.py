"""A message log with consumer groups on the PostgreSQL that is already there."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from coordinator.app import Coordinator
    from coordinator.async_app import AsyncCoordinator
    from coordinator.consumer.aio import AsyncConsumer
    from coordinator.consumer.blocking import Consumer
    from coordinator.errors import CoordinatorError, Reject, Retry
    from coordinator.model import Message, Outgoing, Published, Scheduled
    from coordinator.producer.encode import Codec
    from coordinator.settings import Settings

# Imported when first used: the command line's --version and --help must not wait for psycopg.
_PLACES = {
    "AsyncConsumer": "coordinator.consumer.aio",
    "AsyncCoordinator": "coordinator.async_app",
    "Codec": "coordinator.producer.encode",
    "Consumer": "coordinator.consumer.blocking",
    "Coordinator": "coordinator.app",
    "CoordinatorError": "coordinator.errors",
    "Message": "coordinator.model",
    "Outgoing": "coordinator.model",
    "Published": "coordinator.model",
    "Reject": "coordinator.errors",
    "Retry": "coordinator.errors",
    "Scheduled": "coordinator.model",
    "Settings": "coordinator.settings",
}

__all__ = [
    "AsyncConsumer",
    "AsyncCoordinator",
    "Codec",
    "Consumer",
    "Coordinator",
    "CoordinatorError",
    "Message",
    "Outgoing",
    "Published",
    "Reject",
    "Retry",
    "Scheduled",
    "Settings",
]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
