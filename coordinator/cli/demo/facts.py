"""What was wanted, what was found, and the comparison: pure, so that it can be shown to fail."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coordinator.cli.demo.flights import CarrierDelay, Flight, carrier_of, delays_of, is_cancelled, poison_of
from coordinator.cli.demo.plan import REPLAY_COUNT

REJECTED = "rejected"
CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What follows from the input alone; messages are named by the number of their flight.

    Attributes:
        cancelled_nrs: The flights that `delays` rejects, ascending.
        poison_nr: The flight that kills its process.
        replayed_nrs: The dead letters that are given back at the end.
        delays: The sums at the end: what took off, without the poison, and what was replayed.
    """

    message_count: int
    cancelled_nrs: Sequence[int]
    poison_nr: int
    replayed_nrs: Sequence[int]
    delays: Mapping[str, CarrierDelay]

    @classmethod
    def of(cls, flights: Sequence[Flight]) -> "Wanted":
        cancelled = [flight["nr"] for flight in flights if is_cancelled(flight)]
        poison, replayed = poison_of(flights), cancelled[:REPLAY_COUNT]
        dead = {poison, *cancelled} - {*replayed}
        booked = [flight for flight in flights if flight["nr"] not in dead]
        # A carrier of which nothing took off has its row of zeros, too.
        delays = {carrier_of(flight): CarrierDelay() for flight in flights} | delays_of(booked)
        return cls(len(flights), cancelled, poison, replayed, delays)

    @property
    def effect_count(self) -> int:
        """How many messages are booked at the end."""
        return self.message_count - len(self.dead_after)

    @property
    def dead_before(self) -> dict[int, str]:
        """The dead letters before the replay, with their reasons."""
        return {**dict.fromkeys(self.cancelled_nrs, REJECTED), self.poison_nr: CRASH}

    @property
    def dead_after(self) -> dict[int, str]:
        """The dead letters that are left after it."""
        return {nr: reason for nr, reason in self.dead_before.items() if nr not in self.replayed_nrs}


@dataclass(frozen=True, slots=True)
class Published:
    """What the publishers say they committed.

    Attributes:
        with_row_count: Of those, published in one transaction with a business row.
        rolled_back_count: Published in a transaction that was rolled back; no group may ever see one.
    """

    count: int = 0
    with_row_count: int = 0
    rolled_back_count: int = 0

    def plus(self, other: "Published") -> "Published":
        return Published(
            self.count + other.count,
            self.with_row_count + other.with_row_count,
            self.rolled_back_count + other.rolled_back_count,
        )


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One group before the replay, by two witnesses: the coordinator's offsets, and the service's own tables.

    Attributes:
        settled_count: Messages below the committed offsets, from the coordinator.
        lag: Upper bound of what is not settled, from the coordinator.
        delivery_count: Hand-overs that the service noted.
        seen_count: Different messages among them.
        phantom_count: Deliveries of messages that were never published, or were rolled back.
        overtaken_count: First deliveries of a message that came after the first delivery of a later one of the same
            partition and key.
    """

    settled_count: int
    lag: int
    delivery_count: int
    seen_count: int
    phantom_count: int
    overtaken_count: int

    @property
    def duplicate_count(self) -> int:
        return self.delivery_count - self.seen_count


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter of `delays`, as the coordinator tells it."""

    nr: int
    partition: int
    offset: int
    reason: str
    error: str
    attempts: int
    crashes: int


@dataclass(frozen=True, slots=True)
class Effects:
    """What the transactions of `delays` left behind, the replay included.

    Attributes:
        nrs: Messages with a row in the ledger, once for each row.
        overtaken_count: Rows that came after the row of a later message of the same partition and key; those of replayed
            messages apart, which are late by intention.
    """

    nrs: Sequence[int]
    overtaken_count: int

    @property
    def repeated_count(self) -> int:
        return len(self.nrs) - len(set(self.nrs))


@dataclass(frozen=True, slots=True)
class Replay:
    """What was seen of the replay.

    Attributes:
        given_back: How many dead letters the coordinator says it gave back.
        nrs_by_group: The messages that were delivered after it, in each group.
        lag: Of `delays` afterwards.
    """

    given_back: int
    nrs_by_group: Mapping[str, Sequence[int]]
    lag: int


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that is compared. `row_count`: business rows of the service."""

    published: Published
    row_count: int
    groups: Mapping[str, GroupFacts]
    dead_before: Sequence[DeadLetter]
    replay: Replay
    dead_after: Sequence[DeadLetter]
    effects: Effects
    delays: Mapping[str, CarrierDelay]

    def lost_count(self, wanted: Wanted, group: str) -> int:
        """Messages that a group did not deal with: `audit` saw it, `delays` booked it or made it a dead letter."""
        if group == "audit":
            return wanted.message_count - self.groups[group].seen_count
        dealt_with = {*self.effects.nrs, *(letter.nr for letter in self.dead_before)}
        return wanted.message_count - len(dealt_with & {*range(wanted.message_count)})


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verdict."""

    name: str
    wanted: int
    found: int

    @property
    def ok(self) -> bool:
        return self.wanted == self.found


def compare(wanted: Wanted, found: Found) -> list[Check]:
    """Return every check, failed ones included; repeated deliveries are reported elsewhere, since they are allowed."""
    checks = [
        Check("messages published", wanted.message_count, found.published.count),
        Check("business rows committed with their messages", found.published.with_row_count, found.row_count),
    ]
    for name, group in sorted(found.groups.items()):
        checks += [
            Check(f"{name}: settled", wanted.message_count, group.settled_count),
            Check(f"{name}: lag", 0, group.lag),
            Check(f"{name}: lost", 0, found.lost_count(wanted, name)),
            Check(f"{name}: delivered though rolled back", 0, group.phantom_count),
            Check(f"{name}: overtaken within one aircraft", 0, group.overtaken_count),
        ]
    return [
        *checks,
        *_dead_letter_checks(wanted, found),
        *_replay_checks(wanted, found),
        *_effect_checks(wanted, found),
    ]


def _dead_letter_checks(wanted: Wanted, found: Found) -> list[Check]:
    before = [(letter.nr, letter.reason) for letter in found.dead_before]
    cancelled = {(nr, REJECTED) for nr in wanted.cancelled_nrs}
    poison = [letter for letter in found.dead_before if (letter.nr, letter.reason) == (wanted.poison_nr, CRASH)]
    return [
        Check("dead letters: cancelled flights, rejected", len(cancelled), len(cancelled & {*before})),
        Check("dead letters: the poison message, for its crashes", 1, len(poison)),
        Check("dead letters: innocent or with another reason", 0, len({*before} - {*wanted.dead_before.items()})),
    ]


def _replay_checks(wanted: Wanted, found: Found) -> list[Check]:
    count, replay = len(wanted.replayed_nrs), found.replay
    after = {letter.nr: letter.reason for letter in found.dead_after}
    return [
        Check("replay: dead letters given back", count, replay.given_back),
        Check("replay: delivered to delays", count, len({*wanted.replayed_nrs} & {*replay.nrs_by_group["delays"]})),
        Check("replay: other messages delivered to delays", 0, _others(replay.nrs_by_group["delays"], wanted)),
        Check("replay: delivered to audit", 0, len(replay.nrs_by_group["audit"])),
        Check("replay: lag of delays", 0, replay.lag),
        Check("replay: dead letters left as they were", len(wanted.dead_after), _agreeing(wanted.dead_after, after)),
        Check("replay: dead letters that are new", 0, len({*after} - {*wanted.dead_after})),
    ]


def _effect_checks(wanted: Wanted, found: Found) -> list[Check]:
    effects = found.effects
    return [
        Check("effects: messages booked", wanted.effect_count, len(set(effects.nrs))),
        Check("effects: booked again", 0, effects.repeated_count),
        Check("effects: overtaken within one aircraft", 0, effects.overtaken_count),
        Check("effects: carriers with wrong sums", 0, len(wrong_carriers(wanted.delays, found.delays))),
    ]


def _others(nrs: Collection[int], wanted: Wanted) -> int:
    return len({*nrs} - {*wanted.replayed_nrs})


def _agreeing(wanted: Mapping[int, str], found: Mapping[int, str]) -> int:
    return len({*wanted.items()} & {*found.items()})


def wrong_carriers(wanted: Mapping[str, CarrierDelay], found: Mapping[str, CarrierDelay]) -> list[str]:
    """Return the carriers whose sums differ, that are missing, or that are too many."""
    return sorted(carrier for carrier in {*wanted, *found} if wanted.get(carrier) != found.get(carrier))
