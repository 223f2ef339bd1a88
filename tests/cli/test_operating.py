"""`coordinator groups pause|resume|seek|skip|delete`, `topics alter|add-partitions|delete`, `scheduled`: in both forms."""

import json
from typing import Any

import psycopg
import pytest

from coordinator import Coordinator, Outgoing
from coordinator.cli.output import duration

MOVES = "TOPIC PARTITION CURRENT-OFFSET NEW-OFFSET LOG-START-OFFSET LOG-END-OFFSET SKIPPED PARKED DEAD-LETTERS"


@pytest.fixture
def group(on: Any) -> str:
    """A group that has read three of five messages of partition 0, and has no members."""
    on("topics", "create", "orders", "--partitions", 2)
    on("messages", "publish", "orders", "--partition", 0, stdin=b"1\n2\n3\n4\n5\n")
    assert on("messages", "consume", "orders", "--group", "billing", "--count", 3).code == 0
    return "billing"


@pytest.fixture
def live(group: str, start: Any, on: Any) -> Any:
    """A consumer of the group that runs, and has read to the end."""
    process = start("messages", "consume", "orders", "--group", group)
    for _ in range(2):
        process.stdout.readline()
    while on("groups", "describe", group, "--json").json["total_lag"]:
        pass
    yield process
    process.terminate()
    assert process.wait(30) == 0


def current(on: Any, group: str) -> list[int]:
    return [place["current_offset"] for place in on("groups", "describe", group, "--json").json["partitions"]]


def test_pause_and_resume__of_a_group__say_what_has_changed(on: Any, group: str) -> None:
    ended = on("groups", "pause", group, "--topic", "orders", "--partition", 1, "--reason", "r")
    assert (ended.code, ended.text) == (0, "group billing: 1 of 1 partitions paused\n")
    ended = on("groups", "pause", group)
    assert (ended.text, ended.err) == ("group billing: 1 of 2 partitions paused\n", "1 were so before\n")
    ended = on("groups", "describe", group)
    assert "2 of 2 partitions are paused" in ended.err
    facts = on("groups", "describe", group, "--json").json
    assert (facts["paused"], [place["paused"] for place in facts["partitions"]]) == (2, [True, True])
    facts = on("groups", "resume", group, "--json").json
    assert (facts["resumed"], facts["partitions"][0]) == (2, {"topic": "orders", "partition": 0, "changed": True})


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (("--to-earliest",), [0, 0]),
        (("--to-latest",), [5, 0]),
        (("--to-offset", 1), [1, 0]),
        (("--shift-by", -2), [1, 0]),
        (("--shift-by", 1), [4, 0]),
        (("--to-datetime", "2000-01-01"), [0, 0]),
        (("--to-datetime", "2999-01-01T00:00:00Z"), [5, 0]),
    ],
)
def test_seek__each_target__is_shown_and_then_done(
    on: Any, group: str, target: tuple[object, ...], wanted: list[int]
) -> None:
    ended = on("groups", "seek", group, *target)
    assert ended.code == 0
    assert ended.lines[0].split() == MOVES.split()
    assert [int(line.split()[3]) for line in ended.lines[1:]] == wanted
    assert "--execute" in ended.err
    assert current(on, group)[0] == 3
    facts = on("groups", "seek", group, *target, "--execute", "--json").json
    assert (facts["dry_run"], [place["to_offset"] for place in facts["partitions"]]) == (False, wanted)
    assert current(on, group) == wanted


def test_seek__target_outside_of_the_log__says_that_it_is_clamped(on: Any, group: str) -> None:
    ended = on("groups", "seek", group, "--topic", "orders", "--partition", 0, "--to-offset", 99, "--execute")
    assert ended.lines[1].split()[:7] == ["orders", "0", "3", "5", "0", "5", "2"]
    assert ended.err == "orders 0: 99 lies outside of the log, clamped to 5\n"


@pytest.mark.parametrize("form", ["json", "csv", "csv with names"])
def test_seek__from_a_file__goes_back_to_where_the_group_stood(on: Any, group: str, tmp_path: Any, form: str) -> None:
    path = tmp_path / "before"
    path.write_bytes(
        {
            "json": on("groups", "describe", group, "--json").out,
            "csv": b"# topic,partition,offset\norders,0,3\n",
            "csv with names": b"\xef\xbb\xbftopic,partition,offset\r\norders,0,3\r\n",
        }[form]
    )
    assert on("messages", "consume", "orders", "--group", group, "--count", 2).code == 0
    assert current(on, group)[0] == 5
    ended = on("groups", "seek", group, "--from-file", path, "--execute")
    assert ended.code == 0
    assert current(on, group)[0] == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("orders,0", "line 1"),
        ("orders,0,x", "line 1"),
        ("", "no partition"),
        ("orders,0,1\norders,0,2\n", "twice"),
        ('{"a": 1}', "it has no 'partitions'"),
        ("topic,partition,offset\n", "no partition"),
        ("\udcff", "no UTF-8: found b'\\xff' at byte 0"),
        ("orders,7,0", "no partition 7"),
    ],
)
def test_seek__file_that_is_none__is_a_usage_error(on: Any, group: str, tmp_path: Any, text: str, told: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode(errors="surrogateescape"))
    ended = on("groups", "seek", group, "--from-file", path)
    assert (ended.code, ended.out) == (2, b"")
    assert told in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--to-earliest", "--to-latest"),
        ("--to-latest", "--partition", 0),
        ("--to-datetime", "yesterday"),
        ("--to-latest", "--topic", "nothing"),
    ],
)
def test_seek__wrong_arguments__are_usage_errors(on: Any, group: str, arguments: tuple[object, ...]) -> None:
    ended = on("groups", "seek", group, *arguments)
    assert (ended.code, ended.out) == (2, b"")


def test_seek__members_are_live__is_refused_unless_forced(on: Any, group: str, live: Any) -> None:
    ended = on("groups", "seek", group, "--to-earliest")
    assert "give --force" in ended.err
    ended = on("groups", "seek", group, "--to-earliest", "--execute")
    assert (ended.code, ended.out) == (4, b"")
    assert "live members" in ended.err
    assert on("groups", "seek", group, "--to-earliest", "--execute", "--force", "--reason", "again").code == 0
    assert [json.loads(live.stdout.readline())["offset"] for _ in range(5)] == [0, 1, 2, 3, 4]


def test_describe__with_a_member__has_the_columns_and_what_is_in_hand(on: Any, group: str, live: Any) -> None:
    ended = on("groups", "describe", group)
    assert ended.lines[2].split() == [
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-START-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "AGE",
        "IN-FLIGHT",
        "RETRYING",
        "MEMBER-ID",
        "CLIENT-ID",
        "HOST",
    ]
    assert ended.lines[3].split()[:9] == ["orders", "0", "5", "0", "5", "0", "-", "0", "0"]
    ended = on("groups", "describe", group, "--in-flight")
    assert ended.lines[2].split()[:4] == ["TOPIC", "PARTITION", "FIRST-OFFSET", "MESSAGES"]
    assert on("groups", "describe", group, "--in-flight", "--members").code == 2


def test_skip__one_message__is_shown_and_then_passed(on: Any, group: str, dsn: str) -> None:
    ended = on("groups", "skip", group, "orders", 0, 3)
    assert ended.lines[1].split()[:5] == ["orders", "0", "3", "open", "-"]
    assert "--execute" in ended.err
    assert current(on, group)[0] == 3
    facts = on("groups", "skip", group, "orders", 0, 3, "--execute", "--reason", "broken", "--json").json
    assert (facts["state"], facts["dry_run"], facts["offset"]) == ("open", False, 3)
    assert current(on, group)[0] == 4
    assert on("groups", "skip", group, "orders", 0, 3, "--execute").code == 4
    assert on("groups", "skip", group, "orders", 0, 99).code == 2
    ended = on("groups", "skip", group, "orders", 0, 2**63 - 1)
    assert (ended.code, f"no message at offset {2**63 - 1}" in ended.err) == (2, True)
    assert on("groups", "skip", group, "orders", 0, 4, "--dead-letter", "--execute").code == 0
    (letter,) = on("dlq", "list", group, "--json").objects
    assert (letter["offset"], letter["reason"]) == (4, "skipped")
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select a.action, a.reason from coordinator.audit_list a order by a.audit_id"
        ).fetchall()
    assert rows == [("skip", "broken"), ("skip", None)]


def test_delete__group__asks_first_and_then_it_is_gone(on: Any, group: str) -> None:
    ended = on("groups", "delete", group, stdin=b"n\n")
    assert ended.code == 1
    assert "with 2 messages to settle" in ended.err
    ended = on("groups", "delete", group, "--yes")
    assert (ended.code, ended.text) == (0, "group billing deleted: 2 partitions, 0 dead letters\n")
    assert on("groups", "delete", group, "--yes").code == 2
    assert on("groups", "list", "--json").json == {"groups": []}


def test_delete__live_members__is_refused(on: Any, group: str, live: Any) -> None:
    ended = on("groups", "delete", group, "--yes")
    assert (ended.code, ended.out) == (4, b"")
    ended = on("topics", "delete", "orders", "--yes")
    assert (ended.code, ended.out) == (4, b"")


def test_topics_alter__settings__show_before_and_after(on: Any, group: str) -> None:
    ended = on("topics", "alter", "orders", "--max-backlog", 7, "--no-wake")
    assert sorted(line.split() for line in ended.lines) == [
        ["SETTING", "BEFORE", "AFTER"], ["max_backlog", "-", "7"], ["wake", "yes", "no"],
    ]  # fmt: skip
    facts = on("topics", "alter", "orders", "--max-backlog", "none", "--json").json
    assert facts == {"topic": "orders", "before": {"max_backlog": 7}, "after": {"max_backlog": None}}
    topic = on("topics", "describe", "orders", "--json").json
    assert (topic["wake"], topic["max_backlog"]) == (False, None)
    for wrong in ((), ("--max-backlog", "many"), ("--max-backlog", 0), ("--max-message-bytes", 0)):
        assert on("topics", "alter", "orders", *wrong).code == 2


def test_topics_add_partitions__more__warns_of_keys_and_fewer_is_refused(on: Any, group: str) -> None:
    ended = on("topics", "add-partitions", "orders", "--partitions", 4)
    assert (ended.code, ended.text) == (0, "topic orders has 4 partitions, 2 of them new\n")
    assert "keys" in ended.err
    assert on("topics", "add-partitions", "orders", "--partitions", 3).code == 4
    on("messages", "publish", "orders", "--partition", 3, stdin=b"6\n")
    facts = on("groups", "describe", group, "--json").json
    assert [(place["lag"], place["current_offset"]) for place in facts["partitions"]] == [
        (2, 3),
        (0, 0),
        (0, None),
        (1, None),
    ]


def test_topics_delete__in_use__is_refused_unless_forced(on: Any, group: str) -> None:
    ended = on("topics", "delete", "orders", "--yes")
    assert (ended.code, ended.out) == (4, b"")
    assert "in use" in ended.err
    ended = on("topics", "delete", "orders", "--yes", "--force", "--json")
    assert ended.json == {
        "topic": "orders", "deleted": True, "groups": ["billing"], "members": 0, "unsettled": 2, "scheduled": 0,
    }  # fmt: skip
    assert on("topics", "describe", "orders").code == 2
    assert on("dlq", "replay", group, "--topic", "orders", "--yes").code == 2
    # The name is free, and the group begins anew.
    assert on("topics", "create", "orders").code == 0


def test_scheduled__list_and_cancel__in_both_forms(on: Any, dsn: str) -> None:
    on("topics", "create", "orders")
    assert "nothing waits" in on("scheduled", "list").err
    with Coordinator(dsn) as app:
        app.publish_many("orders", [Outgoing(1, delay_s=1000), Outgoing(2, delay_s=1000)])
    first, second = on("scheduled", "list", "--json").objects
    assert first["topic"] == "orders"
    assert len(on("scheduled", "list", "--topic", "orders", "--limit", 1).lines) == 2
    ended = on("scheduled", "cancel", "orders", first["schedule_id"])
    assert (ended.code, ended.text) == (0, "topic orders: 1 cancelled\n")
    facts = on("scheduled", "cancel", "orders", first["schedule_id"], second["schedule_id"], "--json")
    assert (facts.code, facts.json["cancelled"], facts.json["gone"]) == (
        1,
        [second["schedule_id"]],
        [first["schedule_id"]],
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.2, "0s"), (59.6, "1m"), (61, "1m1s"), (3600, "1h"), (3661, "1h1m"), (90_000, "1d1h"), (-1, "0s")],
)
def test_duration__of_any_length__has_two_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
