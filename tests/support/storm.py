"""The promise of transactional handlers under everything at once: kills, zombies, a restart; and mutants that break it.

Handlers insert what they are given into a table without any constraint, so whatever takes effect twice is there twice.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from support.ledger import EFFECTS, dead, effects, parked, settled, wait_settled
from support.patches import replaced, sql_text
from support.processes import Process, Task
from support.shell import GROUP, TOPIC, query, short, wait_until
from support.sizes import FULL

from coordinator import Coordinator, Outgoing
from coordinator.db.schema import install
from coordinator.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SETTINGS = {
    "lease_s": 1.5,
    "heartbeat_s": 0.3,
    "self_fence_margin_s": 0.3,
    "membership_poll_s": 0.2,
    "connect_timeout_s": 2.0,
}

_INSERT_ACK = """    insert into coordinator.acks (group_id, topic_id, partition, "offset", replay, epoch)
    select p_group, p_topic, p_partition, u.o, u.r, p_epoch from unnest(p_offsets, p_replays) as u(o, r) order by u.o
    on conflict on constraint acks_pkey do nothing;
"""


def ack_in_a_second_transaction() -> str:
    """The handler's transaction carries the fence and no acks row: what settles the message is the exchange after it."""
    return replaced(sql_text("ack"), (_INSERT_ACK, "    perform from unnest(p_offsets);\n"))


def ack_without_fence() -> str:
    """The handler's ack is taken whoever owns the claim, under whatever epoch; the acks row is written as ever."""
    return replaced(
        sql_text("ack"),
        ("\n      and c.owner = p_coordinator and c.epoch = p_epoch\n    for key share", "\n    for key share"),
    )


# By their names in scripts/mutants.
MUTANTS = {
    "ack in a second transaction": ack_in_a_second_transaction,
    "ack without the fence of owner and epoch": ack_without_fence,
}


@dataclass
class Storm:
    """How much there is to handle, by whom, and what happens meanwhile; a second a round.

    In most rounds a process gets SIGKILL, and another takes its place. In some one is frozen instead; it is thawed when it has
    been declared dead and others have done what it had in hand, which it then tries to commit, within the limit of its session.
    Once the server goes down without a word.
    """

    count: int = 20_000 if FULL else 3000
    process_count: int = 4 if FULL else 3
    # On a busy machine there are more kills than a process has time to start in.
    max_kills: int = 30 if FULL else 10
    shell: str = "threads"
    batch_size: int = 1
    patches: Sequence[str] = ()
    rounds: int = 0
    kills: int = 0
    zombies: int = 0
    restarts: int = 0
    found: Counter[int] = field(default_factory=Counter)

    def run(self, folder: Path) -> None:
        """Let it happen, on a server of its own, until everything is settled. `found` has the effects then."""
        with EmbeddedServer.start(tcp=True) as server:
            install(server.dsn)
            for text in (EFFECTS, *self.patches):
                query(server.dsn, text)
            task = Task(
                server.dsn,
                TOPIC,
                GROUP,
                mode="ledger",
                shell=self.shell,
                work_s=0.03,
                settings=SETTINGS,
                options={"concurrency": 4, "retry": [0.2], "max_crashes": 1000, "batch_size": self.batch_size},
            )
            with Coordinator(server.dsn, settings=short()) as app:
                app.create_topic(TOPIC, 8)
                app.publish_many(TOPIC, [Outgoing(value, f"k{value % 500}") for value in range(self.count)])
            with contextlib.ExitStack() as everybody:
                numbers = itertools.count()

                def start() -> Process:
                    named = replace(task, client_id=f"p{next(numbers)}")
                    return everybody.enter_context(Process(named, folder))

                self._blow(server, [start() for _ in range(self.process_count)], start)
                # What was charged with several crashes waits for minutes. What a broken fence let in may never be settled: its
                # owner is refused again and again, by an ack that no question under his epoch finds.
                try:
                    wait_until(lambda: settled(server.dsn) or _stray(server.dsn), 900 if FULL else 300, "all settled")
                    if _stray(server.dsn):
                        with contextlib.suppress(AssertionError):
                            wait_settled(server.dsn, 30)
                except AssertionError:
                    print(*_state(server.dsn), sep="\n")
                    raise
                self._keep(server.dsn)

    def check(self) -> None:
        """Each message has taken effect once, and none is left."""
        lost = [value for value in range(self.count) if not self.found[value]]
        repeated = {value: count for value, count in self.found.items() if count > 1}
        assert not repeated, f"{len(repeated)} with more than one effect: {dict(list(repeated.items())[:10])}"
        assert not self.stray, f"{len(self.stray)} acks of an epoch that was over: {self.stray[:10]}"
        assert not lost, f"{len(lost)} without effect: {lost[:10]}"
        assert sum(value * count for value, count in self.found.items()) == sum(range(self.count))
        assert self.left == [], "dead letters or parked messages"
        # Each effect is of the place where its message lies.
        assert self.places == self.count

    def _keep(self, dsn: str) -> None:
        self.found = Counter(dict(effects(dsn)))
        self.left: list[Any] = dead(dsn) + parked(dsn)
        self.stray = _stray(dsn)
        ((self.places,),) = query(dsn, 'select count(distinct (partition, "offset")) from effects')

    def _blow(self, server: EmbeddedServer, processes: list[Process], start: Callable[[], Process]) -> None:
        frozen: Process | None = None
        wait_until(lambda: all(process.events("start") for process in processes), 60, "all have started some")
        steps = itertools.chain(
            ("kill", "freeze", "thaw", "kill", "restart"), itertools.cycle(("kill", "freeze", "kill", "thaw", "kill"))
        )
        for step in steps:
            next_s = time.monotonic() + 1.0
            self.rounds += 1
            assert self.rounds < 600, "it does not come to an end"
            if step == "restart":
                server.restart("immediate")
                self.restarts += 1
            elif step == "thaw" and frozen is not None:
                frozen.thaw()
                processes.append(frozen)
                frozen = None
            elif step == "freeze":
                frozen = _busy(processes)
                frozen.freeze()
                self.zombies += 1
                held = _begun(frozen) - _done(server.dsn)
                try:
                    wait_until(
                        lambda frozen=frozen, held=held: (
                            not self._owns(server.dsn, frozen) and (not held or held & _done(server.dsn))
                        ),
                        120,
                        "the frozen one is replaced",
                    )
                except AssertionError:
                    print(f"{frozen.task.client_id} is frozen", *_state(server.dsn), sep="\n")
                    raise
            else:
                _busy(processes).kill()
                processes.append(start())
                self.kills += 1
            ((done,),) = query(server.dsn, "select count(distinct value) from effects")
            if done > 0.8 * self.count or self.kills >= self.max_kills:
                break
            wait_until(lambda next_s=next_s: time.monotonic() > next_s)
        if frozen is not None:
            frozen.thaw()
        assert self.restarts == 1
        assert self.kills > 2

    def _owns(self, dsn: str, process: Process) -> bool:
        """Tell by the tables whether a process is an owner, under whatever id; it may have lost everything already."""
        return bool(
            query(
                dsn,
                "select 1 from coordinator.claims k join coordinator.coordinators c on c.coordinator = k.owner "
                "where c.client_id = %s limit 1",
                process.task.client_id,
            )
        )


def _begun(process: Process) -> set[Any]:
    return {event["value"] for event in process.events("start")}


def _done(dsn: str) -> set[Any]:
    return {value for (value,) in query(dsn, "select value from effects")}


def _stray(dsn: str) -> list[tuple[Any, ...]]:
    """The acks that were taken under an epoch which was over: a takeover folds those of the epoch that it ends."""
    return list(
        query(
            dsn,
            'select a.partition, a."offset", a.epoch, c.epoch from coordinator.acks a '
            "join coordinator.claims c using (group_id, topic_id, partition) where a.epoch <> c.epoch",
        )
    )


def _state(dsn: str) -> list[tuple[Any, ...]]:
    """What tells who keeps whom from what."""
    return [
        *query(
            dsn,
            "select c.client_id, c.state, c.coordinator, clock_timestamp() - c.lease_until as overdue, "
            "(select count(*) from coordinator.claims k where k.owner = c.coordinator) from coordinator.coordinators c",
        ),
        *query(
            dsn,
            "select r.crashes, count(*), max(r.next_at) - clock_timestamp() from coordinator.retries r group by 1 order by 1",
        ),
        *query(
            dsn,
            "select a.application_name, a.state, clock_timestamp() - a.state_change, a.wait_event, pg_blocking_pids(a.pid), "
            "left(a.query, 80) from pg_stat_activity a where a.datname = current_database()",
        ),
    ]


def _busy(processes: list[Process]) -> Process:
    """Take out the process that has been there longest; a kill of one that has nothing in hand yet would be no trial."""
    return processes.pop(
        wait_until(lambda: [n for n, p in enumerate(processes) if p.events("start")], 60, "one is busy")[0]
    )


def caught(name: str, folder: Path) -> str | None:
    """Let a storm blow over a mutant; returns what is wrong with the ledger then, or None if the mutant survived."""
    storm = Storm(patches=(MUTANTS[name](),))
    storm.run(folder)
    try:
        storm.check()
    except AssertionError as wrong:
        return str(wrong).partition("\n")[0]
    return None
