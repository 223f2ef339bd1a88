"""Real processes that publish and consume while faults come down on them; then rest, then the check of the record."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP, SIGTERM
from typing import TYPE_CHECKING, Any, TextIO

import psycopg
from support.cluster import Cluster
from support.history import publisher, worker
from support.history.check import check, report, violations
from support.history.figures import growths, summary
from support.history.laws import Violation
from support.history.load import DRIVER, load
from support.history.recorder import Recorder, read
from support.history.schedule import Fault, to_text
from support.pgbouncer import PgBouncer
from support.proxy import Fault as Wire
from support.proxy import Proxy

from coordinator import Coordinator
from coordinator.db.schema import install
from coordinator.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOPIC = "orders"
ROOT = Path(__file__).parents[3]
FLIGHT = Path(__file__).with_name("flight.sql")
SAMPLE_S = 5.0
# Sizes below are not worth a line.
TOLD_BYTES = 500_000
QUIET_TRIES = 4

READS = (
    worker.Reads("plain", [TOPIC], "key", concurrency=4),
    worker.Reads("ledger", [TOPIC], "key", transactional=True, concurrency=3),
    worker.Reads("order", [TOPIC], "partition", batch_size=5, concurrency=2),
)
RATE_PER_PUBLISHER = 350.0
ODD = {"fail once": 0.01, "fail": 0.001, "reject": 0.001, "die": 0.0002}


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        rate: Messages published per second, by all publishers.
        odd: How often a message asks its handlers for something else than an ack.
        reads: Groups that are read by all processes.
        keys: How many there are; messages of one are handled one at a time.
        linger_s: How long an ack may wait for company.
        hold_snapshot: A session holds a REPEATABLE READ snapshot all the time.
        pgbouncer: Two of four consumers, and half of the publishers, are behind a pooler in transaction mode.
        flat: Memory and sizes of tables are to stay what they are: for long runs.
        settle_s: How long it may take after the faults until everything is settled.
    """

    faults: Sequence[Fault]
    folder: Path
    duration_s: float = 60.0
    processes: int = 4
    rate: float = 200.0
    partitions: int = 8
    lease_s: float = 2.0
    seed: int = 1
    odd: dict[str, float] = field(default_factory=lambda: dict(ODD))
    work_s: float = 0.0
    reads: Sequence[worker.Reads] = READS
    keys: int = 200
    linger_s: float = 0.01
    hold_snapshot: bool = False
    pgbouncer: bool = False
    flat: bool = False
    settle_s: float = 120.0
    major: int | None = None

    @property
    def publishers(self) -> int:
        """How many processes publish."""
        return max(1, round(self.rate / RATE_PER_PUBLISHER))

    def settings(self) -> dict[str, Any]:
        """Times that are as short as the lease."""
        return {
            "lease_s": self.lease_s,
            "heartbeat_s": round(self.lease_s / 5, 2),
            "self_fence_margin_s": round(self.lease_s / 5, 2),
            "membership_poll_s": min(2.0, round(self.lease_s / 4, 2)),
            "linger_s": self.linger_s,
            "visibility_timeout_s": 30.0,
            "connect_timeout_s": 5.0,
            "round_trip_timeout_s": 6.0,
            "commit_timeout_s": 20.0,
            "drain_timeout_s": 10.0,
        }


class Child:
    """A worker or publisher; killed for good by the kernel when the driver's session ends badly is not promised."""

    def __init__(self, program: Any, task: Any, folder: Path) -> None:
        self.name: str = task.name
        self.frozen = False
        self.log = folder / f"{task.name}.log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, program.__file__, task.text()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def rss_bytes(self) -> int:
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0


class Storm:
    """One run. `run` returns what is broken; everything is said on `out` as it happens."""

    def __init__(self, plan: Plan, out: TextIO) -> None:
        self.plan = plan
        self.out = out
        self.chance = Random(plan.seed)
        plan.folder.mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder(plan.folder, DRIVER)
        self.workers: list[Child] = []
        self.publishers: list[Child] = []
        self.broken: list[str] = []
        self.began_s = 0.0
        self._counts: dict[str, int] = {}
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._server_lock = threading.Lock()

    # ---- the run

    def run(self) -> list[Violation]:
        (self.plan.folder / "schedule.jsonl").write_text(to_text(self.plan.faults))
        with contextlib.ExitStack() as stack:
            self._start_servers(stack)
            install(self.dsn)
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                connection.execute(FLIGHT.read_text())
            with Coordinator(self.dsn, client_id="driver") as app:
                app.create_topic(TOPIC, self.plan.partitions)
            try:
                return self._run()
            finally:
                for child in [*self.workers, *self.publishers]:
                    if child.running:
                        child.popen.kill()
                        child.popen.wait()

    def _start_servers(self, stack: contextlib.ExitStack) -> None:
        # After each restart autovacuum waits for its naptime before it looks at anything, and storms restart the server all the time.
        major, settings = (
            self.plan.major,
            {"track_commit_timestamp": "on", "max_connections": "300", "autovacuum_naptime": "5s"},
        )
        if any(fault.kind == "promote" for fault in self.plan.faults):
            self.cluster = stack.enter_context(Cluster(synchronous=False, major=major, settings=settings))
            self.server, self.dsn = self.cluster.primary, f"{self.cluster.dsn}&target_session_attrs=read-write"
        else:
            self.server = stack.enter_context(EmbeddedServer.start(tcp=True, settings=settings, major=major))
            self.dsn = self.server.dsn
        self.proxy = stack.enter_context(Proxy(self.server.tcp_dsn))
        self.pooled_dsn = self.dsn
        if self.plan.pgbouncer:
            self.pooled_dsn = stack.enter_context(PgBouncer(self.dsn)).through(self.dsn)

    def _run(self) -> list[Violation]:
        for slot in range(self.plan.processes):
            self.workers.append(self._worker(slot))
        self._wait(self._owned, 60, "all partitions have owners")
        for number in range(self.plan.publishers):
            self.publishers.append(self._publisher(number))
        self.began_s = time.monotonic()
        self.recorder.say("begin")
        holder = self._hold_snapshot() if self.plan.hold_snapshot else None
        self._weather()
        self._calm_down()
        if holder is not None:
            holder.close()
        found = self._judge()
        self._say_goodbye()
        return found

    def _weather(self) -> None:
        """Let the faults come, each at its time; look at the tables meanwhile."""
        faults = sorted(self.plan.faults, key=lambda fault: fault.at_s)
        sampled_s = -SAMPLE_S
        while (now_s := time.monotonic() - self.began_s) < self.plan.duration_s or faults:
            while faults and faults[0].at_s <= now_s:
                self._harm(faults.pop(0))
            for due in [entry for entry in self._later if entry[0] <= now_s]:
                self._later.remove(due)
                due[1]()
            self._look_after()
            if now_s - sampled_s >= SAMPLE_S:
                sampled_s = now_s
                self._sample()
            time.sleep(0.05)

    def _calm_down(self) -> None:
        for _, undo in self._later:
            undo()
        self._later.clear()
        self.proxy.heal()
        self.recorder.say("enough")
        for child in self.publishers:
            if child.running:
                child.popen.send_signal(SIGTERM)
        for child in self.publishers:
            if child.running:
                child.popen.wait(60)
        self._look_after()
        self.recorder.say("calm")
        self._say("the faults are over")

    def _judge(self) -> list[Violation]:
        began_s = time.monotonic()
        with contextlib.suppress(TimeoutError):
            self._wait(self._settled, self.plan.settle_s, "everything is settled")
            self._say(f"settled after {time.monotonic() - began_s:.1f} s")
        self.recorder.say("settled")
        for _ in range(QUIET_TRIES):
            with contextlib.suppress(TimeoutError):
                self._wait(self._balanced, 4 * self.plan.lease_s + 10, "the groups are balanced")
            before = self._epochs()
            self.recorder.say("balanced")
            # Whatever still moved would move within a few looks.
            time.sleep(3 * self.plan.settings()["membership_poll_s"] + 0.5)
            # On a machine that is too busy for heartbeats a lease may end without a fault: then it is looked at again.
            if before == self._epochs():
                break
        self.recorder.say("end")
        if self.plan.flat:
            self._check_flat()
        self.history = load(self.plan.folder, self.dsn)
        verdicts = check(self.history)
        for line in report(verdicts):
            print(line, file=self.out)
        for line in summary(self.history, self.plan.rate):
            print(line, file=self.out)
        return [*violations(verdicts), *(Violation("run", "process", text) for text in self.broken)]

    def _say_goodbye(self) -> None:
        """SIGTERM: all of them end by themselves, and well."""
        for child in self.workers:
            child.popen.send_signal(SIGTERM)
        for child in self.workers:
            try:
                code = child.popen.wait(60)
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                self._break(f"{child.name} ended with {code} after SIGTERM:\n{_tail(child)}")

    # ---- processes

    def _next(self, name: str) -> str:
        self._counts[name] = self._counts.get(name, 0) + 1
        return f"{name}.{self._counts[name]}"

    def _worker(self, slot: int) -> Child:
        # Of four: threads and asyncio, both by run() and by consumers' loops. The last is behind the proxy, the two before it behind
        # the pooler, where there is one.
        explicit = slot % 4 >= 2
        reads = [worker.Reads(**{**_facts(one), "explicit": explicit}) for one in self.plan.reads]
        behind = slot == self.plan.processes - 1
        task = worker.Task(
            self.proxy.dsn if behind else self.pooled_dsn if slot % 4 in (1, 2) else self.dsn,
            str(self.plan.folder),
            self._next(f"w{slot}"),
            reads,
            kind=("threads", "asyncio")[slot % 2],
            work_s=self.plan.work_s,
            settings=self.plan.settings(),
        )
        return Child(worker, task, self.plan.folder)

    def _publisher(self, number: int) -> Child:
        name = self._next(f"p{number}")
        task = publisher.Task(
            self.pooled_dsn if number % 2 == 0 else self.dsn,
            str(self.plan.folder),
            name,
            TOPIC,
            self.plan.rate / self.plan.publishers,
            self.plan.seed,
            keys=self.plan.keys,
            odd=self.plan.odd,
            settings={"connect_timeout_s": 5.0},
        )
        return Child(publisher, task, self.plan.folder)

    def _look_after(self) -> None:
        """Start again what has died, as a supervisor of processes does; who was not to die is told of."""
        for slot, child in enumerate(self.workers):
            code = child.popen.poll()
            if code is None:
                continue
            # By SIGTERM, which may come before anybody listens to it; or by SIGKILL, of the driver, or of a handler that a message has
            # told to.
            if code not in (0, -9, -15):
                self._break(f"{child.name} ended with {code}:\n{_tail(child)}")
            self.recorder.say("gone", process=child.name, code=code)
            self.workers[slot] = self._worker(slot)

    # ---- faults

    def _harm(self, fault: Fault) -> None:
        self._say(
            f"{fault.kind} {fault.slot if fault.kind not in ('restart', 'shut down') else ''} {fault.for_s or ''}"
        )
        child = self.workers[fault.slot % len(self.workers)]
        if fault.kind in ("kill", "stop", "freeze") and (child.frozen or not child.running):
            return
        getattr(self, "_" + fault.kind.replace(" ", "_"))(fault, child)

    def _kill(self, _: Fault, child: Child) -> None:
        self.recorder.say("kill", process=child.name)
        child.popen.kill()
        child.popen.wait()

    def _stop(self, _: Fault, child: Child) -> None:
        self.recorder.say("stop", process=child.name)
        child.popen.send_signal(SIGTERM)

    def _freeze(self, fault: Fault, child: Child) -> None:
        self.recorder.say("freeze", process=child.name, for_s=fault.for_s)
        child.popen.send_signal(SIGSTOP)
        child.frozen = True

        def thaw() -> None:
            self.recorder.say("thaw", process=child.name)
            child.popen.send_signal(SIGCONT)
            child.frozen = False

        self._after(fault.for_s, thaw)

    def _terminate(self, fault: Fault, child: Child) -> None:
        purpose = ("work", "control", "handlers", "")[self.chance.randrange(4)]
        self.recorder.say("terminate", process=child.name, purpose=purpose)
        self._query(
            "select pg_terminate_backend(a.pid) from pg_stat_activity a where a.application_name like %s",
            f"coordinator {purpose}%{child.name}",
        )

    def _restart(self, *_: object) -> None:
        self.recorder.say("restart")
        self.server.restart("immediate")

    def _shut_down(self, fault: Fault, _: Child) -> None:
        self.recorder.say("shut down", for_s=fault.for_s)
        self.server.shut_down("fast")
        self._after(fault.for_s, self._start_again)

    def _start_again(self) -> None:
        self.recorder.say("start")
        self.server.restart()

    def _promote(self, fault: Fault, _: Child) -> None:
        """What is committed from the cut on is lost; the driver says when nothing is lost yet, and when all of it is."""
        self.recorder.say("detach")
        self.cluster.catch_up()
        self.cluster.detach()
        self.recorder.say("detached", for_s=fault.for_s)
        self._after(fault.for_s, self._fail_over)

    def _fail_over(self) -> None:
        assert self.cluster.standby is not None
        self.cluster.primary.kill()
        self.recorder.say("promote")
        self.cluster.promote()
        self.server = self.cluster.standby
        self.proxy.aim(self.server.tcp_dsn)
        self.proxy.reset()
        self._say("the standby is the primary")

    def _black_hole(self, fault: Fault, _: Child) -> None:
        self.recorder.say("black hole", for_s=fault.for_s)
        self.proxy.put(Wire(swallow_up=True, swallow_down=True))

        def end() -> None:
            # What was swallowed never comes. Between real hosts TCP would send it again, or find the connection dead; here the
            # proxy's own end is well, and a handler's statement, which nothing of ours limits, would wait for ever.
            self.proxy.reset()
            self._heal()

        self._after(fault.for_s, end)

    def _cut(self, fault: Fault, _: Child) -> None:
        self.recorder.say("cut", for_s=fault.for_s)
        self.proxy.put(Wire(cut_commit=("before", "after", "after")[self.chance.randrange(3)]))
        self._after(fault.for_s, self._heal)

    def _heal(self) -> None:
        self.recorder.say("heal")
        self.proxy.heal()

    def _kill_publisher(self, *_: object) -> None:
        number = self.chance.randrange(len(self.publishers))
        self.recorder.say("kill", process=self.publishers[number].name)
        self.publishers[number].popen.kill()
        self.publishers[number].popen.wait()
        self.publishers[number] = self._publisher(number)

    def _after(self, seconds: float, undo: Callable[[], None]) -> None:
        self._later.append((time.monotonic() - self.began_s + seconds, undo))

    def _hold_snapshot(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self.dsn, application_name="holder of a snapshot")
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from coordinator.claims")
        self._say("a session holds a snapshot from now on")
        return connection

    # ---- looks at the tables

    def _query(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(self.dsn, autocommit=True, connect_timeout=5) as connection,
        ):
            return connection.execute(text, parameters).fetchall()  # type: ignore[arg-type]
        return []

    def _owned(self) -> bool:
        rows = self._query("select count(*), count(o.member_id) from coordinator.offsets o")
        return bool(rows) and rows[0][0] == rows[0][1] == len(self.plan.reads) * self.plan.partitions

    def _settled(self) -> bool:
        rows = self._query("select coalesce(sum(o.lag + o.parked), -1) from coordinator.offsets o")
        self._look_after()
        return bool(rows) and rows[0][0] == 0

    def _balanced(self) -> bool:
        rows = self._query(
            "select coalesce(max(x.n) - min(x.n), 9), count(*) from (select m.group_id, m.coordinator, count(c.owner) as n "
            "from coordinator.members m left join coordinator.claims c on c.group_id = m.group_id and c.owner = m.coordinator "
            "group by 1, 2) x"
        )
        self._look_after()
        return (
            bool(rows) and rows[0][0] <= 1 and rows[0][1] == len(self.plan.reads) * len(self.workers) and self._owned()
        )

    def _epochs(self) -> list[tuple[Any, ...]]:
        return self._query(
            "select c.group_id, c.topic_id, c.partition, c.epoch from coordinator.claims c order by 1, 2, 3"
        )

    def _sample(self) -> None:
        """Sizes of tables and processes; and C of the invariants, on whatever state there is right now."""
        sizes = self._query(
            "select c.relname, pg_total_relation_size(c.oid) from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where n.nspname = 'coordinator' and c.relkind = 'r' and c.relname !~ '^topic_' "
            "and c.relname not in ('dead_letters', 'dedup')"
        )
        memory = {child.name: child.rss_bytes() for child in self.workers if child.running}
        lag = self._query("select sum(o.lag)::bigint from coordinator.offsets o")
        self.recorder.say("sample", tables=dict(sizes), memory=memory, lag=lag[0][0] if lag else None)
        with contextlib.suppress(psycopg.Error):
            verdicts = check(load(None, self.dsn, light=True), ("I1", "I2"))
            for violation in violations(verdicts):
                self._break(f"in the middle of it: {violation}")

    def _check_flat(self) -> None:
        for growth in growths([event for event in read(self.recorder.path) if event["event"] == "sample"]):
            if growth.now >= TOLD_BYTES:
                self._say(str(growth))
            # Nobody can clean a table while a snapshot is held; that exchanges do not slow down with them is looked at then.
            kept = self.plan.hold_snapshot and growth.what.startswith("table")
            if growth.too_much and not kept:
                self.recorder.say("grown", what=growth.what, was=growth.was, now=growth.now, most=growth.most)

    # ---- telling

    def _wait(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        deadline_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline_s:
                self._break(f"not within {limit_s:g} s: {what}")
                raise TimeoutError(what)
            time.sleep(0.2)

    def _break(self, text: str) -> None:
        self.broken.append(text)
        self._say(text)

    def _say(self, text: str) -> None:
        since_s = time.monotonic() - self.began_s if self.began_s else 0.0
        print(f"{since_s:7.1f}  {text}", file=self.out, flush=True)


def _facts(reads: worker.Reads) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(reads)


def _tail(child: Child) -> str:
    return "\n".join(child.log.read_text(errors="replace").splitlines()[-15:])
