"""What was wanted, what was found, and the comparison: pure, so that it can be shown to fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.cli.demo.flights import CarrierDelay, Flight, delays_of


@dataclass(frozen=True, slots=True)
class Wanted:
    """What follows from the input alone."""

    message_count: int
    delays: Mapping[str, CarrierDelay]

    @classmethod
    def of(cls, flights: Sequence[Flight]) -> "Wanted":
        return cls(len(flights), delays_of(flights))


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
    """One group after the run, by two witnesses: the coordinator's offsets, and the service's own tables.

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
class Found:
    """Everything that is compared. `row_count`: business rows of the service; `ledger_count`: booked messages."""

    published: Published
    row_count: int
    ledger_count: int
    groups: Mapping[str, GroupFacts]
    delays: Mapping[str, CarrierDelay]


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
    """Return every check, failed ones included; duplicates are reported elsewhere, since they are allowed."""
    checks = [
        Check("messages published", wanted.message_count, found.published.count),
        Check("business rows committed with their messages", found.published.with_row_count, found.row_count),
    ]
    for name, group in sorted(found.groups.items()):
        checks += [
            Check(f"{name}: settled", wanted.message_count, group.settled_count),
            Check(f"{name}: lag", 0, group.lag),
            Check(f"{name}: lost", 0, wanted.message_count - group.seen_count),
            Check(f"{name}: delivered though rolled back", 0, group.phantom_count),
            Check(f"{name}: overtaken within one aircraft", 0, group.overtaken_count),
        ]
    checks.append(Check("delays: messages booked once", wanted.message_count, found.ledger_count))
    checks.append(Check("delays: carriers with wrong sums", 0, len(wrong_carriers(wanted.delays, found.delays))))
    return checks


def wrong_carriers(wanted: Mapping[str, CarrierDelay], found: Mapping[str, CarrierDelay]) -> list[str]:
    """Return the carriers whose sums differ, that are missing, or that are too many."""
    return sorted(carrier for carrier in {*wanted, *found} if wanted.get(carrier) != found.get(carrier))
