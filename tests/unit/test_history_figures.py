"""What long runs are judged by: each figure can fail."""

import pytest
from support.history.figures import growths, publish_rate, slowed, too_slow, uncharged
from support.history.model import ClaimKey, ClaimState, Crash, History, Process, Publish

MB = 1_000_000


def samples(memory, tables=None, count=40):
    """Looks at processes whose memory is given by functions of the look's number; None while there is no such process."""
    return [
        {
            "tables": {name: size(number) for name, size in (tables or {}).items()},
            "memory": {name: size(number) for name, size in memory.items() if size(number) is not None},
        }
        for number in range(count)
    ]


def grown(found):
    return [growth.what for growth in growths(found) if growth.too_much]


def test_memory__stays_what_it_is__is_no_growth():
    assert grown(samples({"w0.1": lambda number: 50 * MB + (number % 3) * MB})) == []


def test_memory__of_a_process_that_lives_long__grows():
    assert grown(samples({"w0.1": lambda number: (50 + 2 * number) * MB})) == ["memory of w0.1", "memory of all w0"]


def test_memory__of_a_process_that_comes_late__is_compared_with_itself():
    late = {
        "w2.1": lambda number: 50 * MB if number < 20 else None,
        "w2.2": lambda n: (30 + 3 * n) * MB if n >= 20 else None,
    }
    assert grown(samples(late)) == ["memory of w2.2", "memory of all w2"]


def test_memory__grows_only_from_one_process_to_the_next__is_seen_by_slot():
    replaced = {f"w1.{place}": (lambda n, p=place: (50 + 12 * p) * MB if n // 5 == p else None) for place in range(8)}
    assert grown(samples(replaced)) == ["memory of all w1"]


def test_table__grows__is_told():
    found = samples({}, {"progress": lambda number: number * MB, "claims": lambda _: MB})
    assert grown(found) == ["table progress"]


def history(per_second, *events, seconds=60):
    """A run of a minute in which so many messages are published each second."""
    found = History()
    found.driver = [{"event": "begin", "at": 100.0}, *events, {"event": "enough", "at": 100.0 + seconds}]
    found.publishes = [
        Publish(
            "p0.1", f"{second}", "orders", ["m"] * per_second(second), 0.0, outcome="returned", told_at=100.5 + second
        )
        for second in range(seconds)
    ]
    return found


def test_rate__of_what_was_told_to_be_committed():
    found = history(lambda _: 100)
    assert publish_rate(found) == (100.0, 50)
    for publish in found.publishes[11::2]:
        publish.outcome = "rolled back"
    assert publish_rate(found)[0] == pytest.approx(50, abs=2)


@pytest.mark.parametrize("event", ["restart", "kill"])
def test_rate__after_a_fault_of_those_who_publish__does_not_count(event):
    harm = {"event": event, "at": 120.0, "process": "p0.1"}
    found = history(lambda second: 0 if 20 <= second < 25 else 100, harm)
    assert publish_rate(found) == (100.0, 39)
    assert list(too_slow(found, 100.0)) == []


def test_rate__a_consumer_is_killed__counts():
    found = history(lambda second: 0 if 20 <= second < 25 else 100, {"event": "kill", "at": 120.0, "process": "w0.1"})
    assert publish_rate(found)[1] == 50
    assert [violation.law for violation in too_slow(found, 100.0)] == ["run"]


def test_rate__while_the_server_is_away__does_not_count():
    away = [{"event": "shut down", "at": 110.0}, {"event": "start", "at": 140.0}]
    assert publish_rate(history(lambda second: 0 if 10 <= second < 45 else 100, *away)) == (100.0, 10)


def test_exchanges__twice_as_slow_in_the_last_minute__is_told():
    found = history(lambda _: 1, seconds=600)
    process = found.processes["w0.1"] = Process("w0.1")
    process.exchanges = [(130.0, [20] * 100), (400.0, [900] * 100), (690.0, [39] * 100)]
    assert list(slowed(found)) == []
    process.exchanges[2] = (690.0, [20] * 90 + [41] * 10)
    assert [violation.where for violation in slowed(found)] == ["exchange"]


def test_charge__after_an_outage__is_told():
    found = history(lambda _: 1)
    state = found.claims[ClaimKey("g", "orders", 0)] = ClaimState(0, 0, 0, -1)
    assert list(uncharged(found)) == []
    state.crashed = [Crash("insert", 1, ((0, 1),), alone=False, commit_at=0.0)]
    found.driver.append({"event": "gone", "process": "w0.1", "at": 130.0})
    assert [violation.law for violation in uncharged(found)] == ["R6", "R6"]
