"""What is wrong with a coordinator that runs; the same for both shells."""

import time
from typing import Protocol

from coordinator.consumer.counting import Counting
from coordinator.consumer.listening import WakeUps
from coordinator.core.loop import Engine
from coordinator.observe.health import Finding

# A connection that was lost a moment ago is being replaced: that is no illness yet.
_PATIENCE_S = 5.0


class Shell(Protocol):
    """What both runtimes have."""

    engine: Engine
    counting: Counting
    failure: BaseException | None

    @property
    def wake_ups(self) -> WakeUps: ...

    def dead_loops(self) -> list[str]: ...

    def silent_s(self) -> float: ...


def findings(shell: Shell) -> list[Finding]:
    """Return what is wrong now; nothing of what a coordinator that leaves does not need any more."""
    found = [
        Finding("loop_dead", f"the {name} loop has ended; the process has to be started again", live=True)
        for name in shell.dead_loops()
    ]
    if shell.failure is not None and not found:
        found.append(Finding("loop_dead", f"a loop has ended by {type(shell.failure).__name__}", live=True))
    if shell.engine.draining:
        return found
    found += [Finding("deleted", str(subscription.deleted)) for subscription in shell.engine.deleted]
    now_s = time.monotonic()
    away = {name: now_s - since_s for name, since_s in list(shell.counting.away_since_s.items())}
    if "control" in away and away["control"] >= _PATIENCE_S:
        found.append(Finding("database_away", f"no database for {away['control']:.0f} s"))
    elif "work" in away and away["work"] >= _PATIENCE_S and shell.engine.partitions:
        found.append(Finding("database_away", f"exchanges have failed for {away['work']:.0f} s"))
    elif (silent_s := shell.silent_s()) >= _PATIENCE_S:
        found.append(Finding("database_away", f"the server has not answered for {silent_s:.0f} s"))
    if shell.wake_ups == "deaf" or (shell.counting.listening is False and away.get("control", 0.0) >= _PATIENCE_S):
        found.append(Finding("listener_deaf", "no notification is heard: messages are found by polling alone"))
    if now_s >= shell.engine.lease_until_s:
        late_s = now_s - shell.engine.lease_until_s
        found.append(
            Finding("lease_lost", f"no heartbeat was answered in time: nothing is handed over for {late_s:.0f} s now")
        )
    return found
