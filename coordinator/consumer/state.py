"""What a coordinator in memory is, whichever shell runs it."""

import os
import random
from collections.abc import Callable, Iterable
from uuid import UUID, uuid4
from weakref import WeakSet

from coordinator.consumer.counting import Counting
from coordinator.consumer.listening import ListenCheck, WakeUps
from coordinator.consumer.options import Options, limits_of
from coordinator.core.loop import Engine
from coordinator.core.subscription import Subscription
from coordinator.errors import CoordinatorError, DeletedError, LoopFailedError
from coordinator.settings import Settings


class State:
    """Who it is, what its engine knows, and what ended it."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        settings: Settings,
        client_id: str,
        static_id: str | None,
        wake: Callable[[], None],
    ) -> None:
        """`wake`: brings the work loop round."""
        self.dsn = dsn
        self.schema = schema
        self.settings = settings
        self.client_id = client_id
        self.static_id = static_id
        self.id: UUID = uuid4()
        self.failure: BaseException | None = None
        # What `stop` could not make durable.
        self.unsaved: CoordinatorError | None = None
        # When a connection of our own was last found broken, monotonic.
        self.broken_s = float("-inf")
        self.engine = Engine(limits_of(settings), wake, random.random)
        self.counting = Counting(self.engine)
        self.assigned = False
        # Which history of the database all memory is of (R4), and who this was in the one before.
        self.history: str | None = None
        self._left_behind: UUID | None = None
        self._options: list[Options] = []
        self._joined = False
        self._claiming = False
        self._listening = ListenCheck(uuid4())
        self.counting.hears = lambda: self._listening.wake_ups != "deaf"
        _states.add(self)

    @property
    def wake_ups(self) -> WakeUps:
        """How new messages are noticed, see ListenCheck."""
        return self._listening.wake_ups

    @property
    def deleted(self) -> DeletedError | None:
        """Why nothing is left to do: everything that was subscribed was deleted."""
        known = self.engine.subscriptions.values()
        return self.engine.deleted[0].deleted if len(self.engine.deleted) == len(known) > 0 else None

    def check(self) -> None:
        """Raise what ended a loop, or left nothing to do: a process whose loop is dead must not look alive."""
        if self.failure is not None:
            raise LoopFailedError(f"a background loop of the coordinator ended: {self.failure!r}") from self.failure
        if self.deleted is not None:
            raise self.deleted.again()

    def check_there(self, subscriptions: Iterable[Subscription]) -> None:
        """Raise if one of these was deleted. Raises: DeletedError."""
        if self.engine.deleted:
            for subscription in subscriptions:
                if subscription.deleted is not None:
                    raise subscription.deleted.again()

    def on_forked(self) -> None:
        """This is a copy in a child process: what it holds is the parent's, and the loops that would write are not there."""
        if self.engine.subscriptions:
            self.failure = RuntimeError(
                "it was started in another process, of which this one is a fork; start one here"
            )
            self.engine.lease_until_s = float("-inf")


_states: WeakSet[State] = WeakSet()


def _forked() -> None:
    for state in list(_states):
        state.on_forked()


os.register_at_fork(after_in_child=_forked)
