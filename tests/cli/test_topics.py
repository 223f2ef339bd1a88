"""`coordinator topics`."""

from typing import Any

import pytest


def test_create__new_and_again__says_which(on: Any) -> None:
    assert on("topics", "create", "orders", "--partitions", 3).text == "topic orders created with 3 partitions\n"
    assert on("topics", "create", "orders", "--partitions", 3).text == "topic orders exists with 3 partitions\n"
    assert on("topics", "create", "orders", "--partitions", 3, "--json").json == {
        "topic": "orders",
        "partitions": 3,
        "created": False,
    }


def test_create__another_number_of_partitions__is_refused(on: Any) -> None:
    on("topics", "create", "orders", "--partitions", 3)
    ended = on("topics", "create", "orders", "--partitions", 4)
    assert (ended.code, ended.out) == (4, b"")
    assert "3 partitions" in ended.err
    assert "4" in ended.err


@pytest.mark.parametrize(
    "arguments", [("bad name",), ("x", "--partitions", 0), ("x", "--partitions", 9999), ("x", "--max-message-bytes", 0)]
)
def test_create__values_that_cannot_be__are_usage_errors(on: Any, arguments: tuple[object, ...]) -> None:
    ended = on("topics", "create", *arguments)
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("error: ")


def test_list__none_and_some__in_both_forms(on: Any) -> None:
    empty = on("topics", "list")
    assert empty.lines == ["TOPIC  PARTITIONS  MESSAGES  BYTES  SEGMENT  CREATED"]
    assert "coordinator topics create" in empty.err
    assert on("topics", "list", "--json").json == {"topics": []}
    on("topics", "create", "b", "--partitions", 2)
    on("topics", "create", "a", "--no-wake", "--max-message-bytes", 10)
    on("messages", "publish", "b", stdin=b"1\n2\n")
    ended = on("topics", "list")
    assert ended.err == ""
    assert [line.split()[:3] for line in ended.lines[1:]] == [["a", "1", "0"], ["b", "2", "2"]]
    first, second = on("topics", "list", "--json").json["topics"]
    assert (first["topic"], first["wake"], first["max_message_bytes"], first["messages"]) == ("a", False, 10, 0)
    assert (second["topic"], second["messages"], sum(second["log_end_offsets"])) == ("b", 2, 2)


def test_describe__after_messages__shows_the_end_of_each_partition(on: Any) -> None:
    on("topics", "create", "orders", "--partitions", 2)
    on("messages", "publish", "orders", "--partition", 1, stdin=b"1\n2\n3\n")
    ended = on("topics", "describe", "orders")
    assert ended.code == 0
    assert [line.split() for line in ended.lines[-3:]] == [
        ["PARTITION", "LOG-START-OFFSET", "LOG-END-OFFSET"],
        ["0", "0", "0"],
        ["1", "0", "3"],
    ]
    assert on("topics", "describe", "orders", "--json").json["log_end_offsets"] == [0, 3]


def test_rotate__once_and_again__names_the_segment(on: Any) -> None:
    on("topics", "create", "orders")
    assert on("topics", "rotate", "orders").text == "topic orders writes to segment 2\n"
    assert on("topics", "rotate", "orders", "--json").json == {"topic": "orders", "segment": 3}
    assert on("topics", "describe", "orders", "--json").json["segment"] == 3


def test_retention__given_and_altered__is_shown(on):
    on("topics", "create", "orders", "--retention-s", 3600, "--unconsumed", "drop", "--segment-max-bytes", "none")
    facts = on("topics", "describe", "orders", "--json").json
    assert (facts["retention_s"], facts["unconsumed"], facts["segment_max_bytes"]) == (3600, "drop", None)
    assert facts["log_start_offsets"] == [0]
    changed = on("topics", "alter", "orders", "--retention-s", "none", "--retention-bytes", 10**9, "--json").json
    assert changed["before"] == {"retention_s": 3600, "retention_bytes": None}
    assert changed["after"] == {"retention_s": None, "retention_bytes": 10**9}
    assert on("topics", "alter", "orders", "--retention-s", 0).code == 2
    assert "UNCONSUMED" in on("topics", "describe", "orders").text


def test_retention__not_given__is_a_week_of_what_everybody_has_read(on):
    on("topics", "create", "orders")
    facts = on("topics", "describe", "orders", "--json").json
    assert (facts["retention_s"], facts["unconsumed"], facts["segment_max_bytes"]) == (604800, "keep", 2**30)


def test_rights__named__are_shown_and_a_role_that_is_not_there_is_refused(on):
    on("topics", "create", "orders")
    named = on("topics", "rights", "orders", "--publish", "everybody", "--subscribe", "nobody", "--json")
    assert named.json == {"topic": "orders", "publish": None, "subscribe": []}
    assert on("topics", "rights", "orders", "--publish", "no such role", "--subscribe", "everybody").code == 2
    # The wider one would win, of two that say opposite things.
    mixed = on("topics", "rights", "orders", "--publish", "everybody", "--publish", "nobody", "--subscribe", "nobody")
    assert (mixed.code, mixed.out) == (2, b"")
    assert "everybody and nobody" in mixed.err


def test_groups_expire__given__is_set(on):
    on("topics", "create", "orders")
    on("messages", "publish", "orders", stdin=b"1\n")
    on("messages", "consume", "orders", "--group", "g", "--exit-at-end")
    assert on("groups", "expire", "g", "--after-s", 60, "--json").json["expire_s"] == 60
    assert on("groups", "expire", "g", "--after-s", 0).code == 2
    assert on("groups", "expire", "nobody").code == 2
