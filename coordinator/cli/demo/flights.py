"""The demo's input, and what must come out of it: computed from the file alone, without a database."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

DATA_NAME = "flights-2013-01-01-07.jsonl.gz"

Flight = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CarrierDelay:
    """What is booked for one carrier. `delay_min` sums the arrival delays of those that arrived.

    `flights` counts those that took off. `cancelled` counts the others, once somebody has decided what to do with them.
    """

    flights: int = 0
    arrived: int = 0
    delay_min: int = 0
    cancelled: int = 0

    def plus(self, flight: Flight) -> "CarrierDelay":
        flown, arrived, delay_min, cancelled = booking_of(flight)
        return CarrierDelay(
            self.flights + flown, self.arrived + arrived, self.delay_min + delay_min, self.cancelled + cancelled
        )


def read_flights() -> list[Flight]:
    """Read the week that comes with the package."""
    packed = files("coordinator.cli.demo").joinpath("data", DATA_NAME).read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


def numbered(flights: Sequence[Flight], count: int) -> list[Flight]:
    """Cut or repeat the data to `count` flights and number them in `nr`, from 0."""
    return [{**flights[nr % len(flights)], "nr": nr} for nr in range(count)]


def share_of(flights: Iterable[Flight], share: int, shares: int) -> Iterator[Flight]:
    """One publisher's part. All flights of an aircraft go to the same one, so that their order is kept."""
    return (flight for flight in flights if zlib.crc32((flight["tail"] or flight["flight"]).encode()) % shares == share)


def carrier_of(flight: Flight) -> str:
    """Return the two-character code of the airline."""
    return str(flight["flight"][:2])


def is_cancelled(flight: Flight) -> bool:
    return flight["dep"] is None


def booking_of(flight: Flight) -> tuple[int, int, int, int]:
    """Return what a flight adds to its carrier's row: flown, arrived, minutes of delay, cancelled."""
    if is_cancelled(flight):
        return 0, 0, 0, 1
    delay_min = flight["arr_delay_min"]
    return (1, 0, 0, 0) if delay_min is None else (1, 1, delay_min, 0)


def poison_of(flights: Sequence[Flight]) -> int:
    """Return the number of the flight that is to kill its process: the first after two thirds that took off."""
    start = 2 * len(flights) // 3
    return next(nr for nr, flight in enumerate(flights[start:], start) if not is_cancelled(flight))


def delays_of(flights: Iterable[Flight]) -> dict[str, CarrierDelay]:
    """Sum up per carrier: what the group `delays` must arrive at, if these are what it books."""
    delays: dict[str, CarrierDelay] = {}
    for flight in flights:
        carrier = carrier_of(flight)
        delays[carrier] = delays.get(carrier, CarrierDelay()).plus(flight)
    return delays
