"""The package's log events on standard error, for people at a terminal."""

import logging
from typing import Any

# What every record has; all else are fields of the event.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class EventFormatter(logging.Formatter):
    """`warning: connection.lost attempt=2`."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        text = " ".join([record.getMessage(), *(f"{name}={value}" for name, value in fields.items())])
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{record.levelname.lower()}: {text}"


def show_events(*, verbose: bool) -> None:
    """Show warnings, with `verbose` all that is worth a line; a second call changes only that."""
    logger = logging.getLogger("coordinator")
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    if not any(isinstance(handler.formatter, EventFormatter) for handler in logger.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(EventFormatter())
        logger.addHandler(handler)
        logger.propagate = False
