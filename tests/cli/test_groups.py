"""`coordinator groups`."""

import re
from typing import Any

import psycopg
import pytest

COLUMNS = (
    "TOPIC PARTITION CURRENT-OFFSET LOG-START-OFFSET LOG-END-OFFSET LAG AGE IN-FLIGHT RETRYING MEMBER-ID CLIENT-ID HOST"
)
MEMBER_COLUMNS = "MEMBER-ID CLIENT-ID HOST PID STATE PARTITIONS LEASE-LEFT-S JOINED TOPICS"


@pytest.fixture
def group(on: Any) -> str:
    """A group that has read three of five messages, and has no members."""
    on("topics", "create", "orders", "--partitions", 2)
    on("messages", "publish", "orders", "--partition", 0, stdin=b"1\n2\n3\n4\n5\n")
    assert on("messages", "consume", "orders", "--group", "billing", "--count", 3).code == 0
    return "billing"


def test_list__none__says_so(on: Any) -> None:
    ended = on("groups", "list")
    assert ended.lines == ["GROUP  TOPICS  MEMBERS  LAG  CREATED"]
    assert "no groups" in ended.err
    assert on("groups", "list", "--json").json == {"groups": []}


def test_list__group_without_members__is_listed_with_a_note(on: Any, group: str) -> None:
    ended = on("groups", "list")
    assert ended.lines[1].split()[:4] == ["billing", "orders", "0", "2"]
    assert ended.err == "without members: billing\n"
    (entry,) = on("groups", "list", "--json").json["groups"]
    assert (entry["group"], entry["topics"], entry["members"], entry["lag"]) == ("billing", ["orders"], 0, 2)


def test_describe__without_members__has_dashes_and_a_note(on: Any, group: str) -> None:
    ended = on("groups", "describe", group)
    assert ended.code == 0
    assert re.fullmatch(
        r"group billing: empty, 0 members, total lag 2, oldest unacked \d+s, 0 retrying, 0 dead letters", ended.lines[0]
    )
    lines = [line.split() for line in ended.lines[1:]]
    age = lines[1].pop(6)
    assert age.endswith("s")
    assert lines == [
        COLUMNS.split(),
        ["orders", "0", "3", "0", "5", "2", "0", "0", "-", "-", "-"],
        ["orders", "1", "0", "0", "0", "0", "-", "0", "0", "-", "-", "-"],
    ]
    assert ended.err == "group billing has no members: nobody reads for it now\n"


def test_describe__json__has_offsets_as_numbers(on: Any, group: str) -> None:
    facts = on("groups", "describe", group, "--json").json
    assert (facts["group"], facts["state"], facts["member_count"], facts["total_lag"]) == ("billing", "empty", 0, 2)
    first = facts["partitions"][0]
    assert (first["topic"], first["partition"], first["current_offset"], first["lag"]) == ("orders", 0, 3, 2)
    assert first["member_id"] is None
    assert facts["members"] == []


def test_describe__with_a_member__names_it(on: Any, group: str, start: Any) -> None:
    process = start("messages", "consume", "orders", "--group", group)
    process.stdout.readline()
    facts = on("groups", "describe", group, "--json").json
    (member,) = facts["members"]
    assert (facts["state"], member["pid"], member["partitions"]) == ("stable", process.pid, 2)
    lines = on("groups", "describe", group).lines
    assert lines[0].startswith("group billing: stable, 1 members, total lag")
    assert lines[2].split()[9] == member["member_id"]
    lines = on("groups", "describe", group, "--members").lines
    assert lines[1].split() == MEMBER_COLUMNS.split()
    assert lines[2].split()[0] == member["member_id"]
    process.terminate()
    assert process.wait(30) == 0


def test_describe__parked_and_dead__are_counted(on: Any, group: str, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        ids = "select g.group_id, t.topic_id, 0, {} from coordinator.groups g, coordinator.topics t"
        connection.execute(
            'insert into coordinator.retries (group_id, topic_id, partition, "offset", fails, crashes, next_at, created_at) '
            + ids.format("0, 1, 0, now(), now()")
        )
        connection.execute(
            "insert into coordinator.dead_letters "
            + ids.format("n, null, gen_random_uuid(), now(), null, null, '', 'attempts', 'no', 5, 0, 0, '[]', now()")
            + ", generate_series(1, 2) n"
        )
    lines = on("groups", "describe", group).lines
    assert lines[0].endswith(", 1 retrying, 2 dead letters")
    assert [line.split()[8] for line in lines[2:]] == ["1", "0"]
    facts = on("groups", "describe", group, "--json").json
    assert (facts["total_parked"], facts["total_dead_letters"]) == (1, 2)
    assert [(found["parked"], found["dead_letters"]) for found in facts["partitions"]] == [(1, 2), (0, 0)]
