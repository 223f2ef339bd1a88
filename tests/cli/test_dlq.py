"""`coordinator dlq`, on dead letters that a real consumer has made."""

import json
import signal
import threading
import time
from typing import Any

import psycopg
import pytest

from coordinator import Coordinator, Reject, Settings

COLUMNS = "TOPIC PARTITION OFFSET KEY REASON ATTEMPTS CRASHES REPLAYS BYTES DIED ERROR"
QUICK = Settings(membership_poll_s=0.05, poll_max_s=0.05)

# Any bytes at all, and JSON that must not be written anew.
NASTY = [
    b"\x00\xff\xfe not utf-8",
    b"",
    b'{"price": 1.10, "a": 1, "a": 2}',
    b'"\\ud800"',
    b"NaN",
    "grüße\u2028".encode(),
]


@pytest.fixture
def app(dsn: str) -> Any:
    with Coordinator(dsn, settings=QUICK) as made:
        yield made


def die(
    app: Coordinator, values: list[Any], *, partitions: int = 2, error: str = "the bank said no", keys: bool = True
) -> None:
    """Publish to `orders`, and let group `billing` give up on all of it."""
    from coordinator import Outgoing

    app.create_topic("orders", partitions)
    app.publish_many(
        "orders", [Outgoing(value, key=f"k{n}" if keys else None, headers={"n": n}) for n, value in enumerate(values)]
    )
    fail(app, len(values), error)


def fail(app: Coordinator, count: int, error: str = "the bank said no") -> None:
    """Let the group give up on what it gets next, `count` messages."""
    with app.consumer("orders", group="billing", max_attempts=1) as consumer:
        seen = 0
        limit_s = time.monotonic() + 60
        while seen < count:
            assert time.monotonic() < limit_s
            for message in consumer.poll(max_messages=500, timeout_s=1):
                message.reject(error)
                seen += 1
        consumer.commit()


def stored(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            'select d.partition, d."offset", d.payload, d.replays, d.errors from coordinator.dead_letters d order by 1, 2'
        ).fetchall()


def parked(dsn: str) -> list[tuple[int, int]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute('select r.partition, r."offset" from coordinator.retries r order by 1, 2').fetchall()


# ---- list, show, stats, export


def test_list__table__has_a_row_for_each(on: Any, app: Coordinator) -> None:
    die(app, [{"id": 1}, {"id": 2}], partitions=1)
    lines = on("dlq", "list", "billing").lines
    assert lines[0].split() == COLUMNS.split()
    assert lines[1].split()[:9] == ["orders", "0", "0", "k0", "rejected", "1", "0", "0", "8"]
    assert lines[1].endswith("the bank said no")
    assert len(lines) == 3


def test_list__json__is_one_object_a_line_without_payloads(on: Any, app: Coordinator) -> None:
    die(app, [{"id": 1}, {"id": 2}], partitions=1)
    first, second = on("dlq", "list", "billing", "--json").objects
    assert (first["offset"], second["offset"]) == (0, 1)
    assert (first["topic"], first["key"], first["reason"], first["error"]) == (
        "orders",
        "k0",
        "rejected",
        "the bank said no",
    )
    assert not {"value", "payload", "errors"} & first.keys()


def test_list__more_than_the_limit__says_so(on: Any, app: Coordinator) -> None:
    die(app, [1, 2, 3], partitions=1)
    ended = on("dlq", "list", "billing", "--limit", 2)
    assert len(ended.lines) == 3
    assert "more than these 2" in ended.err


def test_list__none__says_so(on: Any, app: Coordinator) -> None:
    die(app, [], partitions=1)
    with app.consumer("orders", group="billing") as consumer:
        consumer.poll(max_messages=1, timeout_s=0.1)
    ended = on("dlq", "list", "billing")
    assert (ended.code, ended.lines, ended.err) == (
        0,
        ["  ".join(COLUMNS.split())],
        "group billing has no dead letters\n",
    )


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--offset", 1], [1]),
        (["--key", "k2"], [2]),
        (["--topic", "orders", "--partition", 0], [0, 1, 2]),
        (["--partition", 7], []),
        (["--reason", "rejected"], [0, 1, 2]),
        (["--reason", "crash"], []),
        (["--error", "^the .*said"], [0, 1, 2]),
        (["--error", "timeout|refused"], []),
        (["--since", "2001-01-01"], [0, 1, 2]),
        (["--until", "2001-01-01T00:00:00Z"], []),
        (["--error", "bank", "--key", "k1"], [1]),
    ],
)
def test_list__filters__match_all_that_are_given(arguments: Any, offsets: Any, on: Any, app: Coordinator) -> None:
    die(app, [1, 2, 3], partitions=1)
    assert [found["offset"] for found in on("dlq", "list", "billing", *arguments, "--json").objects] == offsets


@pytest.mark.parametrize("command", ["list", "stats", "replay", "purge", "export"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nobody"], "there is no group 'nobody'"),
        (["billing", "--topic", "nothing"], "there is no topic 'nothing'"),
        (["billing", "--error", "(unclosed"], "the pattern '(unclosed' for errors is no regular expression"),
        (["billing", "--reason", "bad luck"], "reason: wanted attempts, crash, rejected or skipped, found 'bad luck'"),
        (["billing", "--key", "\udcff"], "key: wanted a text without lone surrogates"),
        (["billing", "--partition", 2**31], "partition: wanted a whole number from 0 to 2147483647"),
        (["billing", "--since", "yesterday"], "found 'yesterday', wanted a time"),
    ],
)
def test_filter__that_cannot_be_one__is_a_usage_error(
    command: str, arguments: Any, text: str, on: Any, app: Coordinator
) -> None:
    die(app, [1])
    ended = on("dlq", command, *arguments)
    assert ended.code == 2
    assert text in ended.err
    assert ended.out == b""


@pytest.mark.parametrize("payload", NASTY)
def test_show__any_payload__is_shown_on_one_line_with_history(payload: bytes, on: Any, app: Coordinator) -> None:
    die(app, [payload], partitions=1)
    lines = on("dlq", "show", "billing", "orders", 0, 0).lines
    assert len([line for line in lines if line.startswith("payload:")]) == 1
    assert lines[-1] == "attempt 1: the bank said no"
    assert 'headers:       {"n": 0}' in lines
    ended = on("dlq", "show", "billing", "orders", 0, 0, "--json")
    assert ended.out.count(b"\n") == 1
    assert (ended.json["headers"], ended.json["errors"]) == ({"n": 0}, [{"error": "the bank said no", "attempt": 1}])


def test_show__no_such__is_a_usage_error(on: Any, app: Coordinator) -> None:
    die(app, [1])
    ended = on("dlq", "show", "billing", "orders", 0, 4711)
    assert (ended.code, ended.out) == (2, b"")
    assert "no dead letter at offset 4711" in ended.err


def test_stats__two_causes__are_counted_by_first_line(on: Any, app: Coordinator) -> None:
    die(app, [1, 2, 3], error="timeout\nafter 3 s")
    die(app, [4], error="refused")
    lines = on("dlq", "stats", "billing").lines
    assert lines[0].startswith("group billing: 4 dead letters of 100000 at most, 0 dropped; oldest 2")
    assert [[*line.split()[:3], line.split()[-1]] for line in lines[2:]] == [
        ["3", "orders", "rejected", "timeout"],
        ["1", "orders", "rejected", "refused"],
    ]
    facts = on("dlq", "stats", "billing", "--error", "refused", "--json").json
    assert (facts["dead_letters"], facts["matched"], facts["dropped"]) == (4, 1, 0)
    assert [(cause["error"], cause["dead_letters"]) for cause in facts["causes"]] == [("refused", 1)]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_export__any_payloads__are_whole(form: Any, on: Any, app: Coordinator) -> None:
    import base64

    die(app, NASTY, partitions=1)
    ended = on("dlq", "export", "billing", *form)
    lines = ended.out.split(b"\n")[:-1]
    assert len(lines) == len(NASTY)
    for payload, line in zip(NASTY, lines, strict=True):
        value = json.loads(line)["value"]
        if isinstance(value, dict) and "payload_base64" in value:
            assert base64.b64decode(value["payload_base64"]) == payload
        else:
            assert payload in line
    assert b'"value": {"price": 1.10, "a": 1, "a": 2}}' in ended.out


def test_export__five_thousand__comes_whole_and_in_order(on: Any, app: Coordinator) -> None:
    die(app, list(range(5000)), partitions=1, keys=False)
    objects = on("dlq", "export", "billing").objects
    assert [found["value"] for found in objects] == list(range(5000))
    assert on("dlq", "stats", "billing", "--json").json["matched"] == 5000
    pages = []
    after = None
    while page := app.dead_letters("billing").list(limit=999, after=after):
        pages.append(len(page))
        after = page[-1]
    assert pages == [999] * 5 + [5]


# ---- replay


@pytest.mark.parametrize("command", ["replay", "purge"])
def test_dry_run__some__counts_and_changes_nothing(command: str, on: Any, app: Coordinator, dsn: str) -> None:
    die(app, [1, 2, 3])
    before = stored(dsn)
    ended = on("dlq", command, "billing", "--dry-run")
    assert (ended.code, len(ended.lines)) == (0, 1)
    assert ended.text.startswith("3 dead letters of group billing would be ")
    assert on("dlq", command, "billing", "--dry-run", "--key", "k1", "--json").json == {
        "group": "billing",
        "dry_run": True,
        "matched": 1,
    }
    assert stored(dsn) == before


@pytest.mark.parametrize("command", ["replay", "purge"])
@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 0), (b"n\n", 1, 3), (b"", 1, 3)])
def test_question__answered__is_obeyed(
    command: str, answer: bytes, code: int, left: int, on: Any, app: Coordinator, dsn: str
) -> None:
    die(app, [1, 2, 3])
    ended = on("dlq", command, "billing", stdin=answer)
    assert "3 dead letters" in ended.err
    assert (ended.code, len(stored(dsn))) == (code, left)
    assert bool(ended.out) == (code == 0)


def test_replay__yes__gives_them_back_to_this_group_with_attempt_one(on: Any, app: Coordinator, dsn: str) -> None:
    die(app, [1, 2, 3], partitions=1)
    ended = on("dlq", "replay", "billing", "--yes")
    assert [line.split() for line in ended.lines] == [["MATCHED", "REPLAYED", "GONE", "FULL"], ["3", "3", "0", "0"]]
    assert (stored(dsn), len(parked(dsn))) == ([], 3)
    with app.consumer("orders", group="billing") as consumer:
        got: list[Any] = []
        limit_s = time.monotonic() + 30
        while len(got) < 3 and time.monotonic() < limit_s:
            for message in consumer.poll(max_messages=10, timeout_s=1):
                got.append((message.value, message.key, message.headers, message.attempt))
                message.ack()
        consumer.commit()
    assert sorted(got) == [(n + 1, f"k{n}", {"n": n}, 1) for n in range(3)]
    assert parked(dsn) == []


def test_replay__none_matches__says_so(on: Any, app: Coordinator) -> None:
    die(app, [1])
    ended = on("dlq", "replay", "billing", "--key", "nobody's")
    assert (ended.code, ended.err) == (0, "there is nothing to do\n")
    facts = on("dlq", "replay", "billing", "--key", "nobody's", "--yes", "--json").json
    assert (facts["matched"], facts["replayed"]) == (0, 0)


def test_replay__limit__takes_the_first_ones(on: Any, app: Coordinator, dsn: str) -> None:
    die(app, [1, 2, 3, 4, 5], partitions=1)
    assert on("dlq", "replay", "billing", "--limit", 2, "--dry-run", "--json").json["matched"] == 2
    facts = on("dlq", "replay", "billing", "--limit", 2, "--yes", "--json").json
    assert (facts["replayed"], parked(dsn)) == (2, [(0, 0), (0, 1)])


def test_replay__rate__is_kept(on: Any, app: Coordinator) -> None:
    die(app, list(range(20)), partitions=1)
    began_s = time.monotonic()
    assert on("dlq", "replay", "billing", "--rate", 20, "--yes", "--json").json["replayed"] == 20
    assert 0.4 < time.monotonic() - began_s < 10


def test_replay__partition_full__is_left_and_a_finding(app: Coordinator, dsn: str, monkeypatch: Any, on: Any) -> None:
    from coordinator.cli.commands import Options

    die(app, [1, 2, 3], partitions=1)
    small = Coordinator(dsn, settings=Settings(max_parked=2))
    monkeypatch.setattr(Options, "coordinator", lambda _self: small)
    ended = on("dlq", "replay", "billing", "--yes", "--json")
    assert (ended.code, ended.json["replayed"], ended.json["full"]) == (1, 2, 1)
    assert "1 were left" in ended.err
    assert [row[1] for row in stored(dsn)] == [2]


def test_replay__handler_still_fails__dies_again_once_with_a_longer_history(
    on: Any, app: Coordinator, dsn: str
) -> None:
    """R10: it dies twice; and a replay that is under way does not take up again what died meanwhile."""
    die(app, [b"\x00bytes"], partitions=1, error="first")
    assert on("dlq", "replay", "billing", "--yes").code == 0
    fail(app, 1, error="second")
    ((_, offset, payload, replays, errors),) = stored(dsn)
    assert (offset, payload, replays) == (0, b"\x00bytes", 1)
    assert [entry["error"] for entry in errors] == ["first", "second"]
    assert on("dlq", "replay", "billing", "--yes").code == 0
    fail(app, 1, error="third")
    ((_, _, _, replays, errors),) = stored(dsn)
    assert (replays, [entry["error"] for entry in errors]) == (2, ["first", "second", "third"])


def test_replay__handler_fails_at_once__ends_and_replays_each_once(on: Any, app: Coordinator, dsn: str) -> None:
    die(app, list(range(40)), partitions=1)
    ended: list[Any] = []
    thread = threading.Thread(
        target=lambda: ended.append(app.dead_letters("billing").replay(rate=40)),
    )
    thread.start()
    fail(app, 40)
    thread.join(30)
    assert ended[0].replayed == 40
    assert {row[3] for row in stored(dsn)} == {1}


def test_replay__two_at_once__replay_each_once(start: Any, on: Any, app: Coordinator, dsn: str) -> None:
    die(app, list(range(3000)), keys=False)
    processes = [start("dlq", "replay", "billing", "--yes", "--json") for _ in range(2)]
    found = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum(facts["replayed"] for facts in found) == 3000
    assert (stored(dsn), len(parked(dsn))) == ([], 3000)
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select distinct replays from coordinator.retries").fetchall() == [(1,)]


def test_replay__killed_half_way__goes_on_when_called_again(start: Any, on: Any, app: Coordinator, dsn: str) -> None:
    die(app, list(range(300)), keys=False)
    process = start("dlq", "replay", "billing", "--yes", "--rate", 100)
    limit_s = time.monotonic() + 30
    while not parked(dsn):
        assert time.monotonic() < limit_s
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    done = len(parked(dsn))
    assert 0 < done < 300
    assert len(stored(dsn)) == 300 - done
    facts = on("dlq", "replay", "billing", "--yes", "--json").json
    assert facts["replayed"] == 300 - done
    assert (stored(dsn), len(parked(dsn))) == ([], 300)


def test_replay__interrupted__says_how_far_it_came(start: Any, on: Any, app: Coordinator, dsn: str) -> None:
    die(app, list(range(300)), keys=False)
    process = start("dlq", "replay", "billing", "--yes", "--rate", 100)
    limit_s = time.monotonic() + 30
    while not parked(dsn):
        assert time.monotonic() < limit_s
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"were replayed before; the same call goes on with the rest" in err


def test_replay__group_dropped_meanwhile__says_so(on: Any, app: Coordinator, dsn: str) -> None:
    die(app, list(range(40)), partitions=1)

    def drop(_count: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("delete from coordinator.groups")

    from coordinator.errors import NotFoundError

    with pytest.raises(NotFoundError):
        app.dead_letters("billing").replay(rate=20, on_batch=drop)


# ---- purge, bound


def test_purge__filtered__deletes_these_only(on: Any, app: Coordinator, dsn: str) -> None:
    die(app, [1, 2, 3], partitions=1)
    ended = on("dlq", "purge", "billing", "--key", "k1", "--yes")
    assert [line.split() for line in ended.lines] == [["MATCHED", "PURGED", "GONE"], ["1", "1", "0"]]
    assert [row[1] for row in stored(dsn)] == [0, 2]
    assert on("dlq", "purge", "billing", "--yes", "--json").json["purged"] == 2
    assert stored(dsn) == []


def test_purge__one_is_being_replayed__leaves_it(on: Any, app: Coordinator, dsn: str) -> None:
    die(app, [1, 2, 3], partitions=1)
    with psycopg.connect(dsn) as other:
        other.execute("select * from coordinator.replay('billing', 'orders', 0, '{1}')")
        facts = on("dlq", "purge", "billing", "--yes", "--json").json
        assert (facts["purged"], facts["gone"]) == (2, 1)
    assert parked(dsn) == [(0, 1)]


def test_bound__set_and_trimmed__is_shown_by_stats(on: Any, app: Coordinator) -> None:
    die(app, list(range(5)), partitions=1)
    assert app.dead_letters("billing").set_max(2) == 100_000
    assert on("maintain", "--once").code == 0
    facts = on("dlq", "stats", "billing", "--json").json
    assert (facts["dead_letters"], facts["max_dead_letters"], facts["dropped"]) == (2, 2, 3)
    assert [found["offset"] for found in on("dlq", "list", "billing", "--json").objects] == [3, 4]


# ---- asyncio


def test_async__the_same_names__do_the_same(app: Coordinator, dsn: str) -> None:
    import asyncio

    from coordinator import AsyncCoordinator

    die(app, list(range(7)), partitions=1)

    async def story() -> None:
        async with AsyncCoordinator(dsn) as aapp:
            letters = aapp.dead_letters("billing")
            assert [letter.offset for letter in await letters.list(limit=3)] == [0, 1, 2]
            assert (await letters.get("orders", 0, 1)).payload == b"1"
            assert (await letters.stats()).matched == 7
            assert await letters.counts() == {("orders", 0): 7}
            assert [json.loads(line)["value"] async for line in letters.export()] == list(range(7))
            assert (await letters.replay(dry_run=True, limit=2)).matched == 2
            assert (await letters.replay(limit=2, rate=100)).replayed == 2
            assert (await letters.purge(offset=3)).purged == 1
            assert (await letters.purge(dry_run=True)).matched == 4
            assert await letters.set_max(10) == 100_000

    asyncio.run(story())


def test_handler__raises_reject__its_reason_is_the_error(on: Any, app: Coordinator) -> None:
    app.create_topic("orders", 1)

    @app.subscribe("orders", group="billing")
    def handle(message: Any) -> None:
        app.stop()
        raise Reject("no such customer: \x00\ud800")

    app.publish("orders", {"id": 1}, key="ada")
    assert app.run(install_signal_handlers=False) == 0
    (found,) = on("dlq", "list", "billing", "--json").objects
    assert (found["reason"], found["error"], found["key"]) == ("rejected", "no such customer: \ufffd?", "ada")
