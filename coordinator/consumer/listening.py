"""Whether LISTEN hears, and what to think of a coordinator's connections; the same for both shells, no I/O.

A listener can be deaf on a session that is well otherwise: behind a pooler that was said to keep sessions, or after somebody
has reset the session. So from time to time a notification of our own goes around, sent by the work connection and heard by
the one that listens. Any other notification proves as much.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias
from uuid import UUID

from coordinator.core.subscription import Subscription
from coordinator.errors import UnavailableError
from coordinator.observe import events
from coordinator.observe.logs import logger

log = logger()

WakeUps: TypeAlias = Literal["listen", "checking", "deaf", "poll"]

CHECK_EVERY_S = 15.0
_PATIENCE_S = 5.0
# A session that hears nothing is made anew once; then it is not the session, and polling has to do.
_MAX_MISSES = 2
# A server that takes so long for an answer is worth telling.
_SILENT_S = 3.0


class ListenCheck:
    """Calls are serialised by the caller.

    Attributes:
        channel: Of the notifications that go around, by the schema's default name.
        wake_ups: "listen" (heard on this session), "checking" (not yet), "deaf", or "poll" (LISTEN is not wanted).
    """

    def __init__(self, name: UUID) -> None:
        """`name`: this coordinator's alone, for as long as it listens."""
        self.channel = f"coordinator.check_{name.hex}"
        self.wake_ups: WakeUps = "poll"
        self._due_s = 0.0
        self._wanted = False
        self._sent_s: float | None = None
        self._misses = 0
        self._heard_since = False

    def begin(self, now_s: float) -> None:
        """A new session listens."""
        if self.wake_ups != "deaf":
            self.wake_ups = "checking"
        self._due_s, self._sent_s = now_s, None

    def ask(self, now_s: float) -> bool:
        """Tell whether the work loop is to be woken, to send a notification; raises when one was not heard.

        Raises:
            UnavailableError: The session hears nothing, and a new one may.
        """
        if self.wake_ups == "poll":
            return False
        if self._sent_s is not None and now_s - self._sent_s >= _PATIENCE_S:
            self._sent_s = None
            self._due_s = now_s + CHECK_EVERY_S
            self._misses += 1
            if self._misses < _MAX_MISSES:
                raise UnavailableError(f"LISTEN has heard nothing of a notification for {_PATIENCE_S:g} s")
            if self.wake_ups != "deaf":
                self.wake_ups = "deaf"
                log.warning(
                    events.LISTENER_DEAF,
                    extra={
                        "hint": 'Only polling wakes consumers. A pooler in transaction mode? Say pooler="transaction".'
                    },
                )
        if self._sent_s is None and not self._wanted and now_s >= self._due_s:
            self._wanted = True
            return True
        return False

    def next_s(self) -> float:
        """When to ask again; infinite where nothing is waited for."""
        if self.wake_ups == "poll" or (self._wanted and self._sent_s is None):
            return float("inf")
        return self._due_s if self._sent_s is None else self._sent_s + _PATIENCE_S

    @property
    def wanted(self) -> bool:
        """The work loop is to send a notification."""
        return self._wanted

    def sending(self) -> None:
        """The notification is about to be sent, and may be heard before its sender knows of the COMMIT."""
        self._wanted = self._heard_since = False

    def sent(self, now_s: float) -> None:
        """The notification is committed."""
        if not self._heard_since:
            self._sent_s = now_s

    def heard(self, now_s: float) -> None:
        """A notification came, whichever."""
        if self.wake_ups == "deaf":
            log.info(events.LISTENER_RESTORED)
        self.wake_ups = "listen"
        self._heard_since = True
        self._misses = 0
        self._sent_s = None
        self._due_s = now_s + CHECK_EVERY_S


def problems_of(
    away_since_s: Mapping[str, float],
    silent_s: float,
    lease_until_s: float,
    failure: BaseException | None,
    now_s: float,
    deleted: Iterable[Subscription] = (),
) -> tuple[str, ...]:
    """Say why a coordinator is not well; empty where it is.

    Args:
        away_since_s: Since when its loops have been without a database, by loop.
        silent_s: How long the oldest round trip under way has been waiting.
    """
    found = [
        f"the {loop} loop has no database for {now_s - since_s:.1f} s" for loop, since_s in sorted(away_since_s.items())
    ]
    if silent_s >= _SILENT_S:
        found.append(f"the server has not answered for {silent_s:.1f} s")
    if now_s >= lease_until_s:
        found.append("its lease may have run out: nothing is started")
    if failure is not None:
        found.append(f"a background loop has ended: {failure!r}")
    found += [str(subscription.deleted) for subscription in deleted]
    return tuple(found)
