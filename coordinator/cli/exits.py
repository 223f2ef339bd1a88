"""Exit codes: the only list of them.

====  ==========================================================================================================
   0  Done. Also: the reader of our output has left (`| head`), and the end by Ctrl-C or SIGTERM of a
      `messages consume` that has no other end.
   1  Done, with a finding: what was asked for is not there or not as it should be, such as no schema installed.
   2  The call has to be changed: usage, settings, a schema of another version, unknown names, input that cannot be
      stored (`ConfigError`, `NotFoundError`, `InvalidInputError`).
   3  Not now: no database (`UnavailableError`), or a topic whose groups are too far behind (`BacklogError`); the same call
      may work later.
   4  Refused, and a repetition is refused as well (`ConflictError`, `FencedError`, `DeniedError`).
   5  Failed otherwise: an error of the database that has no meaning of its own here, output that could not be written,
      a bug.
 130  Interrupted by Ctrl-C (SIGINT) before it was done.
 143  Ended by SIGTERM before it was done.
====  ==========================================================================================================
"""

from coordinator.errors import (
    BacklogError,
    ConfigError,
    ConflictError,
    DeniedError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)

OK = 0
FINDING = 1
USAGE = 2
UNAVAILABLE = 3
REFUSED = 4
FAILED = 5
INTERRUPTED = 130
TERMINATED = 143

_CODE_BY_CLASS: dict[type[Exception], int] = {
    ConfigError: USAGE,
    NotFoundError: USAGE,
    InvalidInputError: USAGE,
    UnavailableError: UNAVAILABLE,
    BacklogError: UNAVAILABLE,
    ConflictError: REFUSED,
    FencedError: REFUSED,
    DeniedError: REFUSED,
}


def code_of(error: BaseException) -> int:
    """Return the exit code for an error; FAILED for all that the table above does not name."""
    for kind, code in _CODE_BY_CLASS.items():
        if isinstance(error, kind):
            return code
    return FAILED
