"""The package's log events on standard error, for people at a terminal."""

import logging
from typing import Any

# What every record has; all else are fields of the event.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class EventFormatter(logging.Formatter):
    """`warning: connection.lost failures=2`, on one line; tracebacks only where they were asked for."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        words = [f"{record.levelname.lower()}:", record.getMessage()]
        words += [f"{name}={value}" for name, value in fields.items()]
        # libpq's messages have several lines, indented.
        text = " ".join(" ".join(words).split())
        if record.exc_info and self._tracebacks:
            text += "\n" + self.formatException(record.exc_info)
        return text


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """Of failures that repeat, keep the first, second, fourth, eighth...: an outage must not fill the screen."""
    failures = getattr(record, "failures", 1)
    return not isinstance(failures, int) or failures & (failures - 1) == 0


def show_events(*, verbose: bool) -> None:
    """Show warnings, with `verbose` all that is worth a line; a later call replaces an earlier one."""
    logger = logging.getLogger("coordinator")
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter(tracebacks=verbose))
    if not verbose:
        handler.addFilter(is_worth_a_line)
    logger.handlers = [handler]
    logger.propagate = False
    # Its warnings are about attempts; what came of them is told by our error.
    logging.getLogger("psycopg").setLevel(logging.NOTSET if verbose else logging.CRITICAL)
