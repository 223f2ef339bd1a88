"""One run of the demo, step by step: the only place that knows the order of events."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from coordinator import Coordinator
from coordinator.cli.demo import letters, tables
from coordinator.cli.demo.facts import Check, DeadLetter, Found, GroupFacts, Published, Replay, Wanted, compare
from coordinator.cli.demo.flights import numbered, read_flights
from coordinator.cli.demo.plan import (
    AUDIT,
    DELAYS,
    GROUPS,
    MAX_CRASHES,
    PARTITION_COUNT,
    PUBLISHER_COUNT,
    SCHEMA,
    TOPIC,
    Role,
    Task,
)
from coordinator.cli.demo.processes import Death, DemoError, Process, Processes
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
    """The SIGKILL from outside: whom it hit, and what was in that process's hands.

    Attributes:
        replaced_by: The process that was started in its place.
        in_flight_count: Messages in the victim's windows that were not settled, as the coordinator's tables say after
            the kill; an upper bound, since it counts offsets.
        takeover_s: From the kill until others own every partition that the victim had.
    """

    process: str
    pid: int
    replaced_by: str
    partition_count: int
    in_flight_count: int
    takeover_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a run found out."""

    options: Options
    kill: Kill
    deaths: Sequence[Death]
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
        self._deaths: list[Death] = []
        self._started_s = time.monotonic()

    def run(self) -> Report:
        """Take all the steps.

        Raises:
            DemoError: If a process failed or the time was up. Numbers that are wrong are told by the report instead.
        """
        options = self._options
        wanted = Wanted.of(numbered(read_flights(), options.message_count))
        with (
            _hard_limit(options.timeout_s + HARD_LIMIT_EXTRA_S),
            tables.sole_run(options.dsn),
            tables.connect(options.dsn) as connection,
        ):
            self._prepare(connection, wanted)
            # The processes inside: they end before the connections do.
            with Coordinator(options.dsn, schema=SCHEMA, client_id="demo") as app, self._processes:
                app.create_topic(TOPIC, partitions=PARTITION_COUNT)
                self._start_consumers(app, wanted)
                publishers = self._start_publishers()
                kill = self._kill_mid_work(app)
                published = self._collect(publishers)
                self._wait_settled(app)
                groups = read_groups(app, connection, published, options.message_count)
                dead_letters = letters.read_dead_letters(app)
                replay = self._replay(app, connection, wanted, dead_letters)
                self._processes.stop()
                found = read_found(app, connection, wanted, published, groups, dead_letters, replay)
        elapsed_s = time.monotonic() - self._started_s
        return Report(options, kill, self._deaths, wanted, found, compare(wanted, found), elapsed_s)

    def _prepare(self, connection: tables.Connection, wanted: Wanted) -> None:
        self._progress.say(f"installing into schema {SCHEMA}, the demo's own")
        tables.create(connection, list(wanted.delays))
        uninstall(self._options.dsn, SCHEMA)
        install(self._options.dsn, SCHEMA)

    def _start_consumers(self, app: Coordinator, wanted: Wanted) -> None:
        """Start both groups, and wait until every process owns a part.

        Without the wait, a process that starts late would find the work done.
        """
        self._progress.say(
            f"starting {self._options.process_count} processes for each of the groups {', '.join(GROUPS)}; those of "
            f"{DELAYS} are watched, and replaced when they die"
        )
        self._progress.say(
            f"flight {wanted.poison_nr} will kill every process that handles it: a dead letter after {MAX_CRASHES} deaths"
        )
        by_group = {
            AUDIT: self._processes.start(self._consume_tasks("audit", wanted)),
            DELAYS: self._processes.start(self._consume_tasks("delays", wanted)),
        }
        for group, processes in by_group.items():
            names = {process.name for process in processes}
            self._wait(
                f"the processes of group {group} to share its partitions", partial(_are_owners, app, group, names)
            )

    def _consume_tasks(self, role: Role, wanted: Wanted) -> Iterable[Task]:
        options = self._options
        # A small part of its fair share: early enough that neither partitions of unequal size leave it short of work, nor does
        # the poison message end it first, whose successor may come when all is done.
        freeze_after = max(1, options.message_count // (16 * options.process_count))
        for index in range(options.process_count):
            yield Task(
                role,
                f"{role}-{index + 1}",
                options.dsn,
                options.message_count,
                freeze_after=freeze_after if role == "delays" and index == 0 else None,
                poison_nr=wanted.poison_nr,
            )

    def _start_publishers(self) -> list[Process]:
        self._progress.say(f"{PUBLISHER_COUNT} processes publish {self._options.message_count:,} flights")
        self._progress.begin(self._options.message_count, GROUPS)
        return self._processes.start(
            Task("publish", f"publisher-{share + 1}", self._options.dsn, self._options.message_count, share=share)
            for share in range(PUBLISHER_COUNT)
        )

    def _kill_mid_work(self, app: Coordinator) -> Kill:
        """SIGKILL a process that is inside its handler, and wait until the others have taken over."""
        frozen: list[Process] = []

        def froze() -> bool:
            frozen.extend(process for process in self._processes if process.is_running() and process.event("frozen"))
            return bool(frozen)

        self._wait(f"a process of {DELAYS} to be in the middle of its work", froze, app)
        victim = frozen[0]
        victim.kill()
        killed_s = time.monotonic()
        owned = [o for o in app.group_offsets(DELAYS) if o.client_id == victim.name]
        in_flight_count = sum(o.window_open for o in owned)
        self._progress.say(
            f"SIGKILL to {victim.name} (pid {victim.pid}) inside its transaction: {len(owned)} partitions, "
            f"{in_flight_count:,} messages in flight"
        )
        successor = self._processes.replace(victim)
        self._progress.say(f"{successor.name} replaces it")
        partitions = {o.partition for o in owned}

        def taken_over() -> bool:
            owners = {o.client_id for o in app.group_offsets(DELAYS) if o.partition in partitions}
            return not owners & {victim.name, None}

        self._wait(f"the others to take over from {victim.name}", taken_over, app)
        takeover_s = time.monotonic() - killed_s
        self._progress.say(f"the others took over after {takeover_s:.1f} s")
        return Kill(victim.name, victim.pid, successor.name, len(owned), in_flight_count, takeover_s)

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

    def _replay(
        self, app: Coordinator, connection: tables.Connection, wanted: Wanted, dead_letters: Sequence[DeadLetter]
    ) -> Replay:
        """Give some dead letters back to `delays`, whose handler was mended meanwhile; `audit` goes on as before."""
        some = [letter for letter in dead_letters if letter.nr in wanted.replayed_nrs]
        self._progress.say(
            f"{len(dead_letters)} dead letters; {DELAYS} restarts with a handler that counts cancelled flights, and gets "
            f"{len(some)} of them back"
        )
        self._processes.stop("delays")
        name = f"{DELAYS}-mended"
        mended = Task("delays", name, self._options.dsn, self._options.message_count, counts_cancelled=True)
        self._processes.start([mended])
        self._wait(f"{name} to own all partitions", partial(_are_owners, app, DELAYS, {name}))
        noted = tables.last_delivery(connection)
        given_back = letters.replay(app, some)
        self._wait("the replayed messages to be settled", partial(_is_settled, app, DELAYS))
        nrs_by_group = {group: tables.select_delivered(connection, group, noted) for group in GROUPS}
        return Replay(given_back, nrs_by_group, sum(o.lag for o in app.group_offsets(DELAYS)))

    def _supervise(self) -> None:
        """Replace processes that the poison message has ended."""
        for death in self._processes.supervise():
            self._deaths.append(death)
            self._progress.say(
                f"the poison message has ended {death.process} (attempt {death.attempt}); {death.replaced_by} replaces it"
            )

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
            self._supervise()
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


def read_groups(
    app: Coordinator, connection: tables.Connection, published: Published, message_count: int
) -> dict[str, GroupFacts]:
    """Ask both witnesses, the coordinator and the service's own tables, how far the groups are."""
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
    return groups


def read_found(
    app: Coordinator,
    connection: tables.Connection,
    wanted: Wanted,
    published: Published,
    groups: dict[str, GroupFacts],
    dead_letters: Sequence[DeadLetter],
    replay: Replay,
) -> Found:
    """Put together what was seen on the way with what the service's tables hold at the end."""
    return Found(
        published,
        tables.count_departures(connection),
        groups,
        dead_letters,
        replay,
        letters.read_dead_letters(app),
        tables.select_effects(connection, wanted.replayed_nrs),
        tables.select_delays(connection),
    )


def _is_settled(app: Coordinator, group: str) -> bool:
    return all(o.lag == 0 for o in app.group_offsets(group))


def _are_owners(app: Coordinator, group: str, names: set[str]) -> bool:
    """Tell whether every partition has an owner, and every one of the processes owns some."""
    try:
        owners = [o.client_id for o in app.group_offsets(group)]
    except NotFoundError:
        return False  # the first of the processes makes the group
    return len(owners) == PARTITION_COUNT and set(owners) == names
