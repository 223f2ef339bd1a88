"""The package's log events on standard error, for people at a terminal and for programs."""

import logging

from coordinator.observe.logs import Format, TextFormatter, show


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """Of failures that repeat, keep the first, second, fourth, eighth...: an outage must not fill the screen."""
    failures = getattr(record, "failures", 1)
    return not isinstance(failures, int) or failures & (failures - 1) == 0


def show_events(*, verbose: bool, log_format: Format | None = None, log_level: str | None = None) -> None:
    """Show warnings, with `verbose` all that is worth a line; a later call replaces an earlier one.

    Args:
        log_format: text or json: lines with their time, as a log has them.
        log_level: debug, info, warning or error; the same.
    """
    logger = logging.getLogger("coordinator")
    if log_format is not None or log_level is not None:
        show(log_format or "text", log_level or ("info" if verbose else "warning"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(TextFormatter(tracebacks=verbose))
        logger.setLevel(logging.INFO if verbose else logging.WARNING)
        logger.handlers = [handler]
        logger.propagate = False
    # What takes half a minute at the first start is told in any case: without a line it looks as if nothing happened.
    logging.getLogger("coordinator.embedded").setLevel(logging.INFO if log_level is None else logging.NOTSET)
    if not verbose:
        logger.handlers[0].addFilter(is_worth_a_line)
    # Its warnings are about attempts; what came of them is told by our error.
    logging.getLogger("psycopg").setLevel(logging.NOTSET if verbose else logging.CRITICAL)
