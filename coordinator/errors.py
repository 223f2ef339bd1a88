"""What can go wrong, by what the caller should do about it, and the SQLSTATE that says so.

Callers choose by class: fix the call (`ConfigError`, `InvalidInputError`, `NotFoundError`, `ConflictError`,
`IsolationError`, `DeniedError`), rejoin (`FencedError`), or try again later (`UnavailableError`, `BacklogError`).
The functions of the schema raise `KGnnn`; the table below is the only list of these codes on this side.
"""


class CoordinatorError(Exception):
    """Root of everything this package raises on purpose. Catch it at the outermost level only.

    Attributes:
        detail: More facts about the failure; the DETAIL of the database error, if there was one.
        hint: What to try; the HINT of the database error, if there was one.
    """

    def __init__(self, message: str = "", *, detail: str | None = None, hint: str | None = None) -> None:
        # Only the message goes into args, all else into attributes: so an error survives pickling and copying.
        super().__init__(message)
        self.detail = detail
        self.hint = hint
        # What a traceback shows below the message. A copy or an unpickled error gets them with its other attributes.
        for note in (detail, f"hint: {hint}" if hint else None):
            if note:
                self.add_note(note)


class ConfigError(CoordinatorError):
    """A setting or argument is wrong. Correct it; a retry cannot help."""


class SchemaVersionError(ConfigError):
    """Client and database speak different protocol versions, or the schema is not installed.

    Run the command that the message names: `coordinator db upgrade`, or upgrade the client package.
    """


class ClosedError(ConfigError):
    """It was closed, and is used all the same. Close it later, or make another one; nothing was sent."""


class InvalidInputError(CoordinatorError, ValueError):
    """A message or argument cannot be stored as it is, such as a key with a NUL. Change it; a retry cannot help."""


class MessageTooLargeError(InvalidInputError):
    """A message is larger than its topic allows.

    Send less (store the data elsewhere and publish where it is), or raise the limit of the topic.
    """


class NotFoundError(CoordinatorError):
    """No such topic, group, member, delivery or dead letter. Create it first, or correct the name."""


class DeletedError(NotFoundError):
    """The group or topic was there, and was deleted while it was used; the message names it.

    Nothing of it can be done any more: end what uses it. Whoever starts again makes a group anew, as if it had never been.
    """

    def again(self) -> "DeletedError":
        """Return a copy, to be raised where it is told once more: each with a traceback of its own."""
        return DeletedError(str(self), detail=self.detail, hint=self.hint)


class ConflictError(CoordinatorError):
    """It exists already, with other properties. Use what is there, or change it on purpose."""


class DuplicateError(ConflictError):
    """A message with this dedup key was published within the window, and the caller asked to be told by an error.

    Nothing of the batch was published. `detail` is JSON: message_id, partition, offset and due_at of the first one.
    """


class BacklogError(CoordinatorError):
    """The topic takes no messages: its slowest group is further behind than its `max_backlog`. Nothing was published.

    Publish again later, as it is; find out why the group is behind.
    """


class IsolationError(CoordinatorError):
    """A function that proves something by several snapshots was called outside READ COMMITTED.

    Call it in a transaction of its own at READ COMMITTED; at a stricter level its proof would lose messages.
    """


class SnapshotTooOldError(CoordinatorError):
    """The transaction sees messages that retention has dropped since it began. Read them in a new one, at READ COMMITTED."""


class DeniedError(CoordinatorError):
    """The database role has no right to publish to this topic, to subscribe to it, or to use the schema at all.

    Ask the owner of the schema for the grant; the message names what was refused.
    """


class FencedError(CoordinatorError):
    """The right to act is gone: another owner has it. Drop what is in flight and rejoin; never repeat the write."""


class StaleEpochError(FencedError):
    """The claim has a newer epoch than the one held. Drop the partition; its new owner delivers from here on.

    Attributes:
        held: The epoch the caller acted under; None if the database did not say.
        current: The epoch of the claim at that moment; None if the database did not say.
    """

    def __init__(
        self,
        message: str = "",
        *,
        held: int | None = None,
        current: int | None = None,
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.held = held
        self.current = current


class MemberDeadError(FencedError):
    """The member was declared dead, or has left. Join again, as a new member; it holds no partition any more."""


class MemberReplacedError(FencedError):
    """Another process has taken the member's static id. This one must end: coming back, it would throw that one out.

    Give each process a static id of its own; the old process of a restart simply ends.
    """


class AlreadySettledError(FencedError):
    """Another run of the message was first and is committed. Roll back; nothing is left to do for this message."""


class LoopFailedError(CoordinatorError):
    """A background loop has ended, again and again; `__cause__` is what ended it. This process does no more: restart it."""


class HandlerError(CoordinatorError):
    """The user's handler failed; `__cause__` is what it raised. Fix the handler; the retry policy has the message."""


class Retry(Exception):  # noqa: N818 - a handler raises it to say what should happen, it is no error of ours
    """Raised by a handler, from any depth: deliver the message again, after `delay_s` seconds if that is given.

    Less than 0 counts as 0, more than 366 days as that, and NaN as what the retry policy says.
    """

    def __init__(self, delay_s: float | None = None, reason: str = "asked for a retry") -> None:
        # Else a reason that is given first would be found out by whoever works out the delay.
        if delay_s is not None and (not isinstance(delay_s, int | float) or isinstance(delay_s, bool)):  # type: ignore[redundant-expr]
            raise InvalidInputError(
                f"delay_s: wanted seconds or None, found {delay_s!r}; a reason is given by its name, reason="
            )
        super().__init__(reason)
        self.delay_s = delay_s

    def __reduce__(self) -> tuple[type["Retry"], tuple[float | None, str]]:
        # By default the arguments of Exception would be taken for ours: the reason for the delay.
        return type(self), (self.delay_s, str(self))


class Reject(Exception):  # noqa: N818 - as Retry
    """Raised by a handler, from any depth: straight to the dead letters, with this reason."""

    def __init__(self, reason: str = "rejected by the handler") -> None:
        super().__init__(reason)
        self.reason = reason


class UnavailableError(CoordinatorError):
    """There is no database right now, or the connection to it was lost. Try again later, on a new connection.

    Whether a statement that was under way took effect is unknown.
    """


class NotStoredError(UnavailableError):
    """The database does not take a dead letter; the message says why. Its message is not settled, and it is tried again.

    Repair what keeps it out, and commit again. Until then its partition's committed offset does not pass it.
    """


class PoolExhaustedError(UnavailableError):
    """All connections of the pool were in use for too long; nothing was sent.

    Try again, publish from fewer threads or tasks at once, or raise `pool_size` or `pool_timeout_s`.
    """


# 57P04 (the database was dropped) is missing on purpose: waiting does not bring it back.
CLASS_BY_SQLSTATE: dict[str, type[CoordinatorError]] = {
    "KG001": StaleEpochError,
    "KG002": MemberDeadError,
    "KG003": NotFoundError,
    "KG004": ConflictError,
    "KG005": InvalidInputError,
    "KG006": MessageTooLargeError,
    "KG007": IsolationError,
    "KG008": DeniedError,
    "KG009": BacklogError,
    "KG010": DuplicateError,
    "KG011": AlreadySettledError,
    "KG012": MemberReplacedError,
    "KG013": DeletedError,
    "KG014": SnapshotTooOldError,
    "22003": InvalidInputError,  # numeric_value_out_of_range: a number that no column takes
    "42501": DeniedError,  # insufficient_privilege: not even the function may be called
    "57P01": UnavailableError,  # admin_shutdown, also pg_terminate_backend
    "57P02": UnavailableError,  # crash_shutdown
    "57P03": UnavailableError,  # cannot_connect_now
    "57P05": UnavailableError,  # idle_session_timeout
    "25P03": UnavailableError,  # idle_in_transaction_session_timeout: the server has hung up
    "53300": UnavailableError,  # too_many_connections
}


def class_of(sqlstate: str) -> type[CoordinatorError] | None:
    """Return the class for a SQLSTATE; None means that the error is not ours to translate."""
    if sqlstate.startswith("08"):  # the whole class "connection exception"
        return UnavailableError
    return CLASS_BY_SQLSTATE.get(sqlstate)
