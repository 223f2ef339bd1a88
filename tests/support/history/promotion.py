"""A standby that lacks the last commits is promoted (R4): what of a record may be undone by that, and what may not.

| when a run starts | |
|---|---|
| before the standby is cut off | it counts. An ack that was told while commits may have been lost is of unknown outcome. |
| while it is being cut off | its traces may be in the tables or not: it is a reason for them, and nothing is asked of it |
| later, under a claim that was taken before the promotion | of the lost history: nothing of it may be in the tables |
| later, under a claim that was taken from the promoted server | it counts |

A claim's epoch can be given out again, and so can an offset: a run of the lost history is known by who owned its epoch since when.
What was published while commits may have been lost is of unknown outcome, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.history.model import History, Run


def set_apart(history: History) -> None:
    """Take out of the history what the promotion in it, if there is one, has undone."""
    detach, detached, promoted = (history.moment(event) for event in ("detach", "detached", "promote"))
    if detach is None or detached is None or promoted is None:
        return
    for publish in history.publishes:
        # By when it was sent: whoever got an answer before the promotion may have come to telling it only behind that.
        if publish.outcome == "returned" and detach <= publish.told_at and publish.at <= promoted:
            publish.outcome = "unknown"
    for key, runs in history.runs.items():
        for run in runs:
            if detach <= run.told_at and min(run.end_at, run.told_at) <= promoted:
                run.told = "unknown"
        history.runs[key] = [run for run in runs if run.start_at < detach or _of_new(history, run, promoted)]
        history.doubtful[key] = [run for run in runs if detach <= run.start_at <= detached]


def _of_new(history: History, run: Run, promoted: float) -> bool:
    """Whether its process had taken the claim from the promoted server, in that epoch."""
    if run.start_at < promoted or run.claim not in history.claims:
        return False
    return any(
        promoted <= owned.at <= run.start_at
        and owned.epoch == run.epoch
        and history.clients.get(owned.owner or "") == run.process
        for owned in history.claims[run.claim].owned
    )
