"""The package's log events on standard error, for people at a terminal."""

import logging
from typing import Any

# What every record has; all else are fields of the event.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class EventFormatter(logging.Formatter):
    """`warning: connection.lost attempt=2`, and tracebacks only where they were asked for."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        text = " ".join([record.getMessage(), *(f"{name}={value}" for name, value in fields.items())])
        if record.exc_info and self._tracebacks:
            text += "\n" + self.formatException(record.exc_info)
        return f"{record.levelname.lower()}: {text}"


def show_events(*, verbose: bool) -> None:
    """Show warnings, with `verbose` all that is worth a line; a later call replaces an earlier one."""
    logger = logging.getLogger("coordinator")
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter(tracebacks=verbose))
    logger.handlers = [handler]
    logger.propagate = False
