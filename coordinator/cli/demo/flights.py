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
    """One carrier's flights; `delay_min` sums the arrival delays of those that arrived."""

    flights: int = 0
    arrived: int = 0
    delay_min: int = 0

    def plus(self, arr_delay_min: int | None) -> "CarrierDelay":
        if arr_delay_min is None:
            return CarrierDelay(self.flights + 1, self.arrived, self.delay_min)
        return CarrierDelay(self.flights + 1, self.arrived + 1, self.delay_min + arr_delay_min)


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


def delays_of(flights: Iterable[Flight]) -> dict[str, CarrierDelay]:
    """Sum up per carrier: what the group `delays` must arrive at."""
    delays: dict[str, CarrierDelay] = {}
    for flight in flights:
        carrier = carrier_of(flight)
        delays[carrier] = delays.get(carrier, CarrierDelay()).plus(flight["arr_delay_min"])
    return delays
