"""One run of the demo, step by step: the only place that knows the order of events."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from coordinator import Coordinator
from coordinator.cli.demo import tables
from coordinator.cli.demo.facts import Check, Found, GroupFacts, Published, Wanted, compare
from coordinator.cli.demo.flights import numbered, read_flights
from coordinator.cli.demo.plan import DELAYS, GROUPS, PARTITION_COUNT, PUBLISHER_COUNT, SCHEMA, TOPIC, Task
from coordinator.cli.demo.processes import DemoError, Process, Processes
from coordinator.cli.demo.progress import Progress
from coordinator.db.schema import install, uninstall
from coordinator.errors import NotFoundError

_POLL_INTERVAL_S = 0.1

# A call that blocks, such as one to a server that has stopped answering, is interrupted so long after the time was up.
HARD_LIMIT_EXTRA_S = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is asked to do. `process_count` is per group; `timeout_s` bounds the whole run."""

    dsn: str
    message_count: int
    process_count: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """The SIGKILL: whom it hit, and what was in that process's hands.

    Attributes:
        in_flight_count: Messages in the victim's windows that were not settled, as the coordinator's tables say after
            the kill; an upper bound, since it counts offsets.
        takeover_s: From the kill until others own every partition that the victim had.
    """

    process: str
    pid: int
    partition_count: int
    in_flight_count: int
    takeover_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a run found out."""

    options: Options
    kill: Kill
    wanted: Wanted
    found: Found
    checks: Sequence[Check]
    elapsed_s: float

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


class Run:
    """The steps, and the state they share."""

    def __init__(self, options: Options, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._processes = Processes()
        self._started_s = time.monotonic()

    def run(self) -> Report:
        """Take all the steps.

        Raises:
            DemoError: If a process failed or the time was up. Numbers that are wrong are told by the report instead.
        """
        options = self._options
        wanted = Wanted.of(numbered(read_flights(), options.message_count))
        with _hard_limit(options.timeout_s + HARD_LIMIT_EXTRA_S), tables.connect(options.dsn) as connection:
            tables.lock_run(connection)
            self._prepare(connection)
            # The processes inside: they end before the connections do.
            with Coordinator(options.dsn, schema=SCHEMA, client_id="demo") as app, self._processes:
                app.create_topic(TOPIC, partitions=PARTITION_COUNT)
                victim = self._start_consumers(app)
                publishers = self._start_publishers()
                kill = self._kill_mid_work(app, victim)
                published = self._collect(publishers)
                self._wait_settled(app)
                self._processes.stop()
                found = read_found(app, connection, published, options.message_count)
        elapsed_s = time.monotonic() - self._started_s
        return Report(options, kill, wanted, found, compare(wanted, found), elapsed_s)

    def _prepare(self, connection: tables.Connection) -> None:
        self._progress.say(f"installing into schema {SCHEMA}, the demo's own")
        tables.create(connection)
        uninstall(self._options.dsn, SCHEMA)
        install(self._options.dsn, SCHEMA)

    def _start_consumers(self, app: Coordinator) -> Process:
        """Start both groups, wait until every process owns a part, and return the one that will be killed.

        Without the wait, a process that starts late would find the work done.
        """
        self._progress.say(
            f"starting {self._options.process_count} processes for each of the groups {', '.join(GROUPS)}"
        )
        by_group = {group: self._processes.start(self._consume_tasks(group)) for group in GROUPS}
        for group, processes in by_group.items():
            names = {process.name for process in processes}
            self._wait(
                f"the processes of group {group} to share its partitions", partial(_are_owners, app, group, names)
            )
        return by_group[DELAYS][0]

    def _consume_tasks(self, group: str) -> Iterable[Task]:
        options = self._options
        # A quarter of its fair share: early enough that partitions of unequal size cannot leave it short of work.
        freeze_after = max(1, options.message_count // (4 * options.process_count))
        for index in range(options.process_count):
            freezes = group == DELAYS and index == 0
            yield Task(
                "delays" if group == DELAYS else "audit",
                f"{group}-{index + 1}",
                options.dsn,
                options.message_count,
                freeze_after=freeze_after if freezes else None,
            )

    def _start_publishers(self) -> list[Process]:
        self._progress.say(f"{PUBLISHER_COUNT} processes publish {self._options.message_count:,} flights")
        self._progress.begin(self._options.message_count, GROUPS)
        return self._processes.start(
            Task("publish", f"publisher-{share + 1}", self._options.dsn, self._options.message_count, share=share)
            for share in range(PUBLISHER_COUNT)
        )

    def _kill_mid_work(self, app: Coordinator, victim: Process) -> Kill:
        """SIGKILL the victim while it is inside its handler, and wait until the others have taken over."""
        self._wait(f"{victim.name} to be in the middle of its work", lambda: victim.event("frozen") is not None, app)
        victim.kill()
        killed_s = time.monotonic()
        owned = [o for o in app.group_offsets(DELAYS) if o.client_id == victim.name]
        in_flight_count = sum(o.window_open for o in owned)
        self._progress.say(
            f"SIGKILL to {victim.name} (pid {victim.pid}) inside its handler: {len(owned)} partitions, "
            f"{in_flight_count:,} messages in flight"
        )
        partitions = {o.partition for o in owned}

        def taken_over() -> bool:
            owners = {o.client_id for o in app.group_offsets(DELAYS) if o.partition in partitions}
            return not owners & {victim.name, None}

        self._wait(f"the others to take over from {victim.name}", taken_over, app)
        takeover_s = time.monotonic() - killed_s
        self._progress.say(f"the others took over after {takeover_s:.1f} s")
        return Kill(victim.name, victim.pid, len(owned), in_flight_count, takeover_s)

    def _collect(self, publishers: Sequence[Process]) -> Published:
        published = Published()
        for publisher in publishers:
            facts = self._wait_event(publisher, "published")
            published = published.plus(Published(**facts))
        return published

    def _wait_settled(self, app: Coordinator) -> None:
        """Wait until both groups have settled everything; offsets that were rolled back count until proven so."""
        for group in GROUPS:
            self._wait(f"group {group} to settle everything", partial(_is_settled, app, group), app)

    def _wait_event(self, process: Process, name: str) -> dict[str, int]:
        found: list[dict[str, int]] = []

        def came() -> bool:
            event = process.event(name)
            found.extend([event] if event is not None else [])
            return bool(found)

        self._wait(f"{process.name} to report {name!r}", came)
        return found[0]

    def _wait(self, what: str, condition: Callable[[], bool], app: Coordinator | None = None) -> None:
        """Return when the condition holds; fail when a process has failed or the time is up, never wait for ever."""
        while not condition():
            self._processes.check()
            if time.monotonic() - self._started_s > self._options.timeout_s:
                raise DemoError(f"the time is up: after {self._options.timeout_s:g} s still waiting for {what}")
            if app is not None:
                for group in GROUPS:
                    settled_count = sum(o.current_offset for o in app.group_offsets(group))
                    # Offsets that were rolled back are passed, too.
                    self._progress.show(group, min(settled_count, self._options.message_count))
            time.sleep(_POLL_INTERVAL_S)


@contextmanager
def _hard_limit(limit_s: float) -> Iterator[None]:
    """Interrupt the main thread, as Ctrl-C does, if the body takes longer; `_wait` is the polite way, this the sure one.

    Raises:
        DemoError: If that happened.
    """
    passed = threading.Event()
    main_ident = threading.main_thread().ident
    assert main_ident is not None

    def interrupt() -> None:
        passed.set()
        # A real signal: _thread.interrupt_main would leave the main thread in its system call.
        signal.pthread_kill(main_ident, signal.SIGINT)

    timer = threading.Timer(limit_s, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    except KeyboardInterrupt:
        if not passed.is_set():
            raise
        raise DemoError(f"the time is up: a call did not return, and was interrupted after {limit_s:g} s") from None
    finally:
        timer.cancel()


def read_found(app: Coordinator, connection: tables.Connection, published: Published, message_count: int) -> Found:
    """Ask both witnesses, the coordinator and the service's own tables, what has happened."""
    groups = {}
    for group in GROUPS:
        offsets = app.group_offsets(group)
        deliveries, seen, phantoms, overtaken = tables.count_deliveries(connection, group, message_count)
        groups[group] = GroupFacts(
            # Offsets that were rolled back are burnt: the committed offset has passed them, and nobody was given one.
            settled_count=sum(o.current_offset - o.start_offset for o in offsets) - published.rolled_back_count,
            lag=sum(o.lag for o in offsets),
            delivery_count=deliveries,
            seen_count=seen,
            phantom_count=phantoms,
            overtaken_count=overtaken,
        )
    row_count, ledger_count = tables.count_rows(connection)
    return Found(published, row_count, ledger_count, groups, tables.select_delays(connection))


def _is_settled(app: Coordinator, group: str) -> bool:
    return all(o.lag == 0 for o in app.group_offsets(group))


def _are_owners(app: Coordinator, group: str, names: set[str]) -> bool:
    """Tell whether every partition has an owner, and every one of the processes owns some."""
    try:
        owners = [o.client_id for o in app.group_offsets(group)]
    except NotFoundError:
        return False  # the first of the processes makes the group
    return len(owners) == PARTITION_COUNT and set(owners) == names
