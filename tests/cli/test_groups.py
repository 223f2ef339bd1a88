"""`coordinator groups`."""

import re
from typing import Any
from uuid import uuid4

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
    lines = [line.split() for line in ended.lines[2:]]
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
    assert lines[0].startswith("group billing: stable, 1 member, total lag")
    assert lines[3].split()[9] == member["member_id"]
    lines = on("groups", "describe", group, "--members").lines
    assert lines[2].split() == MEMBER_COLUMNS.split()
    assert lines[3].split()[0] == member["member_id"]
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
    assert [line.split()[8] for line in lines[3:]] == ["1", "0"]
    facts = on("groups", "describe", group, "--json").json
    assert (facts["total_parked"], facts["total_dead_letters"]) == (1, 2)
    assert [(found["parked"], found["dead_letters"]) for found in facts["partitions"]] == [(1, 2), (0, 0)]


@pytest.fixture
def crashed(group: str, dsn: str) -> str:
    """A member of the group that owns, and is meant for, partition 0; its lease is over, and nobody is there to say so."""
    me = str(uuid4())
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select coordinator.register(%s, 'c', 'h', 1, 10)", (me,))
        (row,) = connection.execute(
            "select j.group_id from coordinator.join_group(%s, %s, '{orders}', 'earliest', null) j", (me, group)
        ).fetchall()
        connection.execute("update coordinator.claims set owner = %s, epoch = epoch + 1 where partition = 0", (me,))
        connection.execute(
            "insert into coordinator.targets (group_id, topic_id, partition, coordinator) "
            "select c.group_id, c.topic_id, c.partition, %s from coordinator.claims c where c.group_id = %s "
            "on conflict (group_id, topic_id, partition) do update set coordinator = excluded.coordinator",
            (me, row[0]),
        )
        connection.execute("update coordinator.coordinators set lease_until = now() - interval '1 minute'")
    return me


def test_crashed_member__nobody_has_declared_it_dead__counts_nowhere(on: Any, group: str, crashed: str) -> None:
    (entry,) = on("groups", "list", "--json").json["groups"]
    assert entry["members"] == 0
    facts = on("groups", "describe", group, "--json").json
    assert (facts["state"], facts["member_count"]) == ("empty", 0)
    assert [(member["member_id"], member["state"]) for member in facts["members"]] == [(crashed, "expired")]
    ended = on("groups", "describe", group)
    assert "empty, 0 members" in ended.lines[0]
    assert "has no members" in ended.err
    assert [reason["code"] for reason in on("health", "--json").json["reasons"]] == ["no_members"]


def test_hand_overs__meant_for_a_member_whose_lease_is_over__wait_for_nobody(
    on: Any, group: str, crashed: str, dsn: str
) -> None:
    assert on("members", "list", "--json").json["hand_overs"] == []
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("update coordinator.coordinators set lease_until = now() + interval '1 minute'")
    waiting = on("members", "list", "--json").json["hand_overs"]
    assert [(one["partition"], one["target_member_id"]) for one in waiting] == [(1, crashed)]


def test_describe__expiry__is_shown(on: Any, group: str) -> None:
    assert (
        "never expires; dead letters are kept of any age, up to the bound in dlq stats"
        in on("groups", "describe", group).lines
    )
    assert (
        on(
            "groups",
            "expire",
            group,
            "--after-s",
            30 * 86400,
            "--action",
            "delete",
            "--dead-letters-after-s",
            7 * 86400,
        ).code
        == 0
    )
    (line,) = [line for line in on("groups", "describe", group).lines if line.startswith("is deleted after 30d")]
    assert line.endswith("; dead letters are kept for 7d, up to the bound in dlq stats")
    assert on("groups", "describe", group, "--json").json["expiry"] | {"unused_since": None} == {
        "unused_since": None,
        "expire_s": 30 * 86400.0,
        "on_expiry": "delete",
        "max_dead_letter_age_s": 7 * 86400.0,
    }
