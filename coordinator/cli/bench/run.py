"""One run of the bench: rounds in which ours and bare take turns at going first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from coordinator import Coordinator
from coordinator.cli.bench import bare as bare_side
from coordinator.cli.bench.bare import Bare
from coordinator.cli.bench.ours import Ours
from coordinator.cli.bench.stats import Case, Spread, Timing, case_of, losses, percentile, ratio_of
from coordinator.cli.bench.workload import Workload
from coordinator.db.schema import install, uninstall

SCHEMA = "coordinator_bench"

_SINGLE_PART = 50
_LATENCY_COUNT = 200

# What we aim at; a ratio below it is shown and is no failure of the run.
_WANTED_RATIOS = {"publish batched": 0.5, "consume batches": 0.4, "consume iterator": 0.4}
WANTED_SUBSCRIBE_RATIO = 0.75

_BATCHES, _ITERATOR, _SUBSCRIBE = "consume batches", "consume iterator", "consume subscribe"
_CASES = ("publish single", "publish batched", _BATCHES, _ITERATOR, _SUBSCRIBE)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is asked to do; `message_count` is per repeat."""

    dsn: str
    message_count: int
    payload_bytes: int
    partition_count: int
    repeat_count: int
    keep: bool


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured.

    Attributes:
        subscribe_ratio: The rate of a handler in relation to the iterator's, in the same repeat.
        lost_count, duplicate_count: Over all repeats, latencies included.
    """

    options: Options
    server_version: int
    cases: Sequence[Case]
    subscribe_ratio: Spread
    latency_p50_ms: float
    latency_p99_ms: float
    latency_max_ms: float
    lost_count: int
    duplicate_count: int

    @property
    def ok(self) -> bool:
        return self.lost_count == 0

    @property
    def subscribe_is_below(self) -> bool:
        return self.subscribe_ratio.median < WANTED_SUBSCRIBE_RATIO


@dataclass(slots=True)
class _Tally:
    """Timings by case and side, and what was missing, as the rounds go by."""

    ours: dict[str, list[Timing]] = field(default_factory=dict)
    bare: dict[str, list[Timing]] = field(default_factory=dict)
    lost_count: int = 0
    duplicate_count: int = 0

    def check(self, wanted_count: int, seen: Sequence[int]) -> None:
        lost, duplicates = losses(wanted_count, seen)
        self.lost_count += lost
        self.duplicate_count += duplicates


def run(options: Options, say: Callable[[str], None]) -> Report:
    """Measure; `say` is told what is going on."""
    # The same connection settings on both sides: those of psycopg, in autocommit mode, with binary results.
    with bare_side.connect(options.dsn) as connection:
        bare = Bare(connection, options.partition_count)
        bare.create()
        uninstall(options.dsn, SCHEMA)
        install(options.dsn, SCHEMA)
        try:
            with Coordinator(options.dsn, schema=SCHEMA, client_id="bench") as app:
                return _measure(options, Ours(app, options.partition_count), bare, say, connection.info.server_version)
        finally:
            if not options.keep:
                bare.drop()
                uninstall(options.dsn, SCHEMA)


def _measure(options: Options, ours: Ours, bare: Bare, say: Callable[[str], None], server_version: int) -> Report:
    tally = _Tally()
    for repeat in range(options.repeat_count):
        say(f"repeat {repeat + 1} of {options.repeat_count}")
        _publish_one_by_one(options, ours, bare, tally, repeat)
        _publish_batched(options, ours, bare, tally, repeat)
        _consume(options, ours, bare, tally, repeat)
    say("latency on an idle topic")
    ours.create_topic("idle", partition_count=1)
    latencies_s, seen = ours.latencies_s("idle", "bench", _LATENCY_COUNT)
    tally.check(_LATENCY_COUNT + 1, seen)
    return Report(
        options,
        server_version,
        [case_of(name, tally.ours[name], tally.bare[name], _WANTED_RATIOS.get(name)) for name in _CASES],
        ratio_of(tally.ours[_SUBSCRIBE], tally.ours[_ITERATOR]),
        1000 * percentile(latencies_s, 50) if latencies_s else 0.0,
        1000 * percentile(latencies_s, 99) if latencies_s else 0.0,
        1000 * max(latencies_s, default=0.0),
        tally.lost_count,
        tally.duplicate_count,
    )


def _publish_one_by_one(options: Options, ours: Ours, bare: Bare, tally: _Tally, repeat: int) -> None:
    workload = Workload(max(50, options.message_count // _SINGLE_PART), options.payload_bytes)
    topic = f"single-{repeat}"
    ours.create_topic(topic)
    mine, other = _in_turns(
        repeat, lambda: ours.publish_one_by_one(topic, workload), lambda: bare.publish(workload, batch_size=1)
    )
    bare.empty()
    _note(tally, "publish single", mine, other)


def _publish_batched(options: Options, ours: Ours, bare: Bare, tally: _Tally, repeat: int) -> None:
    workload = Workload(options.message_count, options.payload_bytes)
    topic = _topic(repeat)
    ours.create_topic(topic)
    mine, other = _in_turns(
        repeat,
        lambda: ours.publish_batched(topic, workload, bare_side.BATCH),
        lambda: bare.publish(workload, bare_side.BATCH),
    )
    _note(tally, "publish batched", mine, other)


def _consume(options: Options, ours: Ours, bare: Bare, tally: _Tally, repeat: int) -> None:
    """Read what _publish_batched has written: in each form by a group of its own, and by a cursor that is set back."""
    count, topic = options.message_count, _topic(repeat)
    forms = [
        (_BATCHES, ours.consume_batches),
        (_ITERATOR, ours.consume_iterator),
        (_SUBSCRIBE, ours.consume_subscribe),
    ]
    # They are compared with each other, too, so they take turns as well.
    for name, consume in forms if repeat % 2 == 0 else reversed(forms):
        group = name.replace(" ", "-")
        (mine, mine_seen), (other, other_seen) = _in_turns(repeat, partial(consume, topic, group, count), bare.consume)
        bare.rewind()
        _note(tally, name, mine, other)
        tally.check(count, mine_seen)
        # A yardstick that reads less would be none.
        assert len(other_seen) == count
    bare.empty()


def _topic(repeat: int) -> str:
    return f"batched-{repeat}"


def _in_turns(repeat: int, first: Callable[[], T], second: Callable[[], T]) -> tuple[T, T]:
    """Run both, in the other order in every second repeat: what runs later finds another machine."""
    if repeat % 2 == 0:
        mine = first()
        return mine, second()
    other = second()
    return first(), other


def _note(tally: _Tally, name: str, mine: Timing, other: Timing) -> None:
    tally.ours.setdefault(name, []).append(mine)
    tally.bare.setdefault(name, []).append(other)
