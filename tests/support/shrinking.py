"""Makes a failing history short: a smaller scenario from the same seed, then as few faults as still break the same law."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from support.simulation import Faults, Scenario, Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator

# How many steps of histories are taken for one failure: a history has some thousand, which take 30 ms.
MOST_STEPS = 300_000
STORY_LINES = 60


@dataclass(frozen=True)
class Shrunk:
    """only: the decisions at which faults happen. runs: how many histories it took."""

    scenario: Scenario
    seed: int
    only: frozenset[int]
    error: str
    story: tuple[str, ...]
    runs: int

    def __str__(self) -> str:
        faults = {f.name: value for f in fields(Faults) if (value := getattr(self.scenario.faults, f.name))}
        dots = ["  ..."] if len(self.story) > STORY_LINES else []
        return "\n".join(
            [
                f"shrunk to {len(self.only)} faults in {self.runs} runs: seed {self.seed}, only={sorted(self.only)},",
                f"  {replace(self.scenario, faults=Faults())}",
                f"  faults {faults}",
                *dots,
                *self.story[-STORY_LINES:],
                self.error,
            ]
        )


class _Shrinker:
    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.seed = seed
        self.runs = self.steps = 0
        self.scenario = scenario
        self.only: frozenset[int] | None = None
        failed = self._run(scenario, None)
        if failed is None:
            raise ValueError(f"seed {seed} does not fail")
        self.failed = failed
        # A shorter history must break the same law: another one may be another story.
        self.law = _law(failed[0])

    def _run(self, scenario: Scenario, only: frozenset[int] | None) -> tuple[str, Simulation] | None:
        self.runs += 1
        simulation = Simulation(scenario, self.seed, only)
        try:
            simulation.run()
        except AssertionError as error:
            return str(error), simulation
        except Exception as error:
            return f"{type(error).__name__}: {error}", simulation
        finally:
            self.steps += simulation.steps
        return None

    def _still(self, scenario: Scenario, only: frozenset[int] | None) -> bool:
        if self.steps >= MOST_STEPS:
            return False
        failed = self._run(scenario, only)
        if failed is None or _law(failed[0]) != self.law:
            return False
        self.scenario, self.only, self.failed = scenario, only, failed
        return True

    def smaller_scenario(self) -> None:
        again = True
        while again and self.steps < MOST_STEPS:
            again = any(self._still(candidate, self.only) for candidate in _smaller(self.scenario))

    def fewer_faults(self) -> None:
        """Delta debugging: leave out halves, quarters, eighths, ... of what is left."""
        left = sorted(self.only) if self.only is not None else list(range(self.failed[1].decisions))
        pieces = 2
        while left and self.steps < MOST_STEPS:
            size = max(1, len(left) // pieces)
            for at in range(0, len(left), size):
                without = left[:at] + left[at + size :]
                if self._still(self.scenario, frozenset(without)):
                    # What a shorter history never came to decide is not needed either.
                    left = [number for number in without if number < self.failed[1].decisions]
                    pieces = max(pieces - 1, 2)
                    break
            else:
                if size == 1:
                    break
                pieces = min(2 * pieces, len(left))
        self.only = frozenset(left)


def shrink(scenario: Scenario, seed: int) -> Shrunk:
    """Return a short history that breaks the same law; the same one for the same arguments."""
    shrinker = _Shrinker(scenario, seed)
    shrinker.smaller_scenario()
    shrinker.fewer_faults()
    shrinker.smaller_scenario()
    error, simulation = shrinker.failed
    only = shrinker.only or frozenset()
    return Shrunk(shrinker.scenario, seed, only, error, tuple(simulation.story), shrinker.runs)


def _law(error: str) -> str:
    return error.partition(":")[0]


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios with less of one thing, the boldest first."""
    first_topic = min(scenario.topics)
    if len(scenario.topics) > 1 or scenario.topics[first_topic] > 1:
        yield replace(scenario, topics={first_topic: 1}, groups={group: [first_topic] for group in scenario.groups})
    if len(scenario.groups) > 1:
        group = min(scenario.groups)
        yield replace(scenario, groups={group: scenario.groups[group]})
    for publishers in (1, 2, scenario.publishers // 2, scenario.publishers - 1):
        if 0 < publishers < scenario.publishers:
            yield replace(scenario, publishers=publishers)
    for name, least in (("processes", 1), ("workers", 1), ("batch", 1), ("keys", 0)):
        if getattr(scenario, name) > least:
            yield replace(scenario, **{name: least})
    if scenario.transactional:
        yield replace(scenario, transactional=False)
    if scenario.faulty_s > 0.5:
        yield replace(scenario, faulty_s=scenario.faulty_s / 2)
    for item in fields(Faults):
        if getattr(scenario.faults, item.name):
            yield replace(scenario, faults=replace(scenario.faults, **{item.name: 0.0}))
