"""`coordinator groups`."""

from typing import Any

import pytest

COLUMNS = "TOPIC PARTITION CURRENT-OFFSET LOG-START-OFFSET LOG-END-OFFSET LAG MEMBER-ID CLIENT-ID HOST"
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
    assert ended.lines[0] == "group billing: empty, 0 members, total lag 2"
    assert [line.split() for line in ended.lines[1:]] == [
        COLUMNS.split(),
        ["orders", "0", "3", "0", "5", "2", "-", "-", "-"],
        ["orders", "1", "0", "0", "0", "0", "-", "-", "-"],
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
    assert lines[2].split()[6] == member["member_id"]
    lines = on("groups", "describe", group, "--members").lines
    assert lines[1].split() == MEMBER_COLUMNS.split()
    assert lines[2].split()[0] == member["member_id"]
    process.terminate()
    assert process.wait(30) == 0
