"""`coordinator messages consume` and `peek`."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from typing import Any

import pytest
from support.shell import wait_until

from coordinator import Coordinator
from coordinator.consumer.blocking import Consumer
from coordinator.model import value_text

LIMIT_S = 30


@pytest.fixture
def topic(on: Any) -> str:
    on("topics", "create", "orders", "--partitions", 2)
    return "orders"


def assert_quiet(process: Any) -> None:
    # Warnings of the consumer's own about partitions that it gives back may come in between.
    lines = process.stderr.read().decode().splitlines()
    assert [line for line in lines if not line.startswith("warning: partition.")] == []


def publish(on: Any, count: int, *, first: int = 0) -> None:
    lines = b"".join(b'{"n": %d}\n' % n for n in range(first, first + count))
    assert on("messages", "publish", "orders", "--key-field", "n", stdin=lines).code == 0


def numbers(lines: list[bytes] | list[str]) -> list[int]:
    return [json.loads(line)["value"]["n"] for line in lines]


def settled(on: Any, group: str) -> int:
    return sum(entry["current_offset"] for entry in on("groups", "describe", group, "--json").json["partitions"])


def test_consume__exit_at_end__prints_every_message_once(on: Any, topic: str) -> None:
    publish(on, 1000)
    ended = on("messages", "consume", topic, "--group", "g", "--exit-at-end")
    assert (ended.code, ended.err) == (0, "")
    assert sorted(numbers(ended.lines)) == list(range(1000))
    first = ended.objects[0]
    assert list(first) == [
        "topic", "partition", "offset", "key", "headers", "message_id", "published_at", "attempt", "content_type", "value",
    ]  # fmt: skip
    assert (first["topic"], first["offset"], first["headers"], first["attempt"]) == ("orders", 0, {}, 1)
    assert datetime.fromisoformat(first["published_at"]).utcoffset().total_seconds() == 0
    for partition in (0, 1):
        offsets = [line["offset"] for line in ended.objects if line["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    again = on("messages", "consume", topic, "--group", "g", "--exit-at-end")
    assert (again.code, again.out) == (0, b"")
    other = on("messages", "consume", topic, "--group", "other", "--exit-at-end", "--json")
    assert len(other.lines) == 1000


def test_consume__count__ends_there_and_goes_on_there(on: Any, topic: str) -> None:
    publish(on, 10)
    first = on("messages", "consume", topic, "--group", "g", "--count", 3)
    assert (first.code, len(first.lines)) == (0, 3)
    assert settled(on, "g") == 3
    rest = on("messages", "consume", topic, "--group", "g", "--exit-at-end")
    assert sorted(numbers(first.lines + rest.lines)) == list(range(10))


def test_consume__several_topics__reads_all(on: Any, topic: str) -> None:
    on("topics", "create", "refunds")
    publish(on, 2)
    on("messages", "publish", "refunds", stdin=b'{"n": 7}\n')
    ended = on("messages", "consume", topic, "refunds", "--group", "g", "--exit-at-end")
    assert sorted(numbers(ended.lines)) == [0, 1, 7]


def test_consume__from_latest_and_from_a_time__skips_what_is_older(on: Any, topic: str) -> None:
    publish(on, 5)
    on("messages", "consume", topic, "--group", "latest", "--from", "latest", "--exit-at-end")
    between = max(message["published_at"] for message in on("messages", "peek", topic, "--json").objects)
    publish(on, 5, first=5)
    ended = on("messages", "consume", topic, "--group", "latest", "--exit-at-end")
    assert sorted(numbers(ended.lines)) == [5, 6, 7, 8, 9]
    ended = on("messages", "consume", topic, "--group", "time", "--from", between, "--exit-at-end")
    found = numbers(ended.lines)
    # The message of that very moment is among them, and maybe neighbours that were written in the same statement.
    assert set(found) >= {5, 6, 7, 8, 9}
    later = on("messages", "consume", topic, "--group", "later", "--from", "9999-01-01", "--exit-at-end")
    assert later.out == b""


@pytest.mark.parametrize("start", ["yesterday", "2030-13-01", ""])
def test_consume__from_nonsense__says_what_is_wanted(on: Any, topic: str, start: str) -> None:
    ended = on("messages", "consume", topic, "--group", "g", "--from", start)
    assert (ended.code, ended.out) == (2, b"")
    assert "earliest, latest or a time" in ended.err


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b'{"a": 1.10, "a": 2}', '{"a": 1.10, "a": 2}'),
        (b'{\n  "a":\r\n "x\\ny"\n}\n', '{   "a":   "x\\ny" }'),
        (b"9" * 10_000, "9" * 10_000),
        (b'"\\ud800"', '"\\ud800"'),
        ('"ü\u2028"'.encode(), '"ü\u2028"'),
        (b"NaN", '{"payload_base64": "TmFO"}'),
        (b"hello", '{"payload_base64": "aGVsbG8="}'),
        (b"", '{"payload_base64": ""}'),
        (b"\xff\xfe", '{"payload_base64": "//4="}'),
        (b"[" * 100_000, None),
    ],
)
def test_value_text__any_payload__is_one_line_of_json(payload: bytes, text: str | None) -> None:
    found = value_text(payload)
    assert "\n" not in found
    assert "\r" not in found
    if text is not None:
        assert found == text


def test_consume__reader_leaves__ends_quietly_and_acks_nothing_unwritten(on: Any, topic: str, start: Any) -> None:
    publish(on, 20_000)
    process = start("messages", "consume", topic, "--group", "g")
    read = [process.stdout.readline() for _ in range(5)]
    process.stdout.close()
    assert process.wait(LIMIT_S) == 0
    assert_quiet(process)
    # What fits into the pipe counts as written: 64 KiB, some 250 lines; all else is delivered to the next one.
    assert len(read) == 5
    rest = on("messages", "consume", topic, "--group", "g", "--exit-at-end")
    assert 20_000 - len(rest.lines) < 2_000
    assert settled(on, "g") == 20_000


def test_consume__pipe_that_breaks_at_once__acks_nothing(on: Any, topic: str, start: Any) -> None:
    publish(on, 10)
    reading, writing = os.pipe()
    os.close(reading)
    process = start("messages", "consume", topic, "--group", "g", stdout=writing)
    os.close(writing)
    assert process.wait(LIMIT_S) == 0
    assert_quiet(process)
    rest = on("messages", "consume", topic, "--group", "g", "--exit-at-end")
    assert sorted(numbers(rest.lines)) == list(range(10))


@pytest.mark.parametrize(
    ("options", "number", "code"),
    [
        ((), signal.SIGINT, 0),
        ((), signal.SIGTERM, 0),
        (("--count", 100), signal.SIGINT, 130),
        (("--count", 100), signal.SIGTERM, 143),
    ],
)
def test_consume__signal__keeps_what_was_written_and_leaves(
    on: Any, topic: str, start: Any, options: tuple[object, ...], number: int, code: int
) -> None:
    publish(on, 4)
    process = start("messages", "consume", topic, "--group", "g", *options)
    read = [process.stdout.readline() for _ in range(4)]
    assert sorted(numbers(read)) == [0, 1, 2, 3]
    started_s = time.monotonic()
    process.send_signal(number)
    assert process.wait(LIMIT_S) == code
    # It has left by itself: nobody has to wait for its lease, which is 10 s.
    assert time.monotonic() - started_s < 5
    assert_quiet(process)
    assert on("groups", "describe", "g", "--json").json["state"] == "empty"
    assert settled(on, "g") == 4


def test_consume__messages_that_come_later__are_printed_as_they_come(on: Any, topic: str, start: Any) -> None:
    process = start("messages", "consume", topic, "--group", "g", "--count", 2)
    publish(on, 1)
    assert numbers([process.stdout.readline()]) == [0]
    publish(on, 1, first=1)
    assert numbers([process.stdout.readline()]) == [1]
    assert process.wait(LIMIT_S) == 0


def test_consume__into_publish__copies_a_topic(on: Any, topic: str, start: Any) -> None:
    publish(on, 100)
    on("topics", "create", "copy")
    first = start("messages", "consume", topic, "--group", "copier", "--exit-at-end")
    second = start("messages", "publish", "copy", "--key-field", "key", "--json", stdin=first.stdout)
    out, _ = second.communicate(timeout=LIMIT_S)
    assert json.loads(out)["published"] == 100
    assert first.wait(LIMIT_S) == 0
    assert second.returncode == 0


def left_behind(on: Any, start: Any, signal_number: int) -> Any:
    """A member that got a signal while it owned everything, and ten messages that came afterwards."""
    on("topics", "create", "orders", "--partitions", 1)
    former = start("messages", "consume", "orders", "--group", "g")
    publish(on, 1)
    assert numbers([former.stdout.readline()]) == [0]
    wait_until(lambda: settled(on, "g") == 1)
    former.send_signal(signal_number)
    publish(on, 10, first=1)
    return former


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_consume__exit_at_end_behind_one_that_was_killed__waits_for_its_lease_and_prints_the_rest(
    on: Any, start: Any, signal_number: int
) -> None:
    """A cron job whose last run died, and which owns nothing yet. Mutant: the end of what it owns itself."""
    former = left_behind(on, start, signal_number)
    ended = on("messages", "consume", "orders", "--group", "g", "--exit-at-end")
    former.kill()
    assert ended.code == 0
    assert sorted(numbers(ended.lines)) == list(range(1, 11))


def test_consume__exit_at_end_takes_over_while_it_looks__prints_the_rest(
    on: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It owned nothing when it was asked for its own end, and everything when the group was. Mutant: all that is its own by then."""
    left_behind(on, start, signal.SIGKILL)
    plain, waited = Consumer.at_end, []

    def at_end(consumer: Consumer) -> bool:
        ended = plain(consumer)
        if ended and not consumer.assignment():
            wait_until(consumer.assignment, LIMIT_S)
            waited.append(consumer)
        return ended

    monkeypatch.setattr(Consumer, "at_end", at_end)
    ended = on("messages", "consume", "orders", "--group", "g", "--exit-at-end")
    assert (ended.code, len(waited)) == (0, 1)
    assert sorted(numbers(ended.lines)) == list(range(1, 11))


def test_consume__exit_at_end_behind_another_member__ends_with_what_that_one_settles_and_says_so(
    on: Any, topic: str, dsn: str, start: Any
) -> None:
    publish(on, 10)
    with Coordinator(dsn) as app, app.consumer(topic, group="g") as other:
        held = other.poll(1, 10)
        waiting = start("messages", "consume", topic, "--group", "g", "--exit-at-end")
        told = waiting.stderr.readline().decode()
        while "waiting for the end" not in told:
            assert told.startswith("warning: partition."), told
            told = waiting.stderr.readline().decode()
        assert f"orders/{held[0].partition} (of " in told
        assert waiting.poll() is None
        taken = held
        while taken:
            for message in taken:
                message.ack(wait=True)
            taken = other.poll(1, 1.0)
        assert waiting.wait(LIMIT_S) == 0


def test_consume__standard_error_closed__works(on: Any, topic: str) -> None:
    publish(on, 1)
    command = f"{sys.executable} -m coordinator.cli messages consume orders --group g --exit-at-end 2>&-"
    ended = subprocess.run(["/bin/sh", "-c", command], check=False, stdout=subprocess.PIPE)
    assert (ended.returncode, numbers(ended.stdout.splitlines())) == (0, [0])


def test_publish__standard_input_closed__is_as_empty(on: Any, topic: str) -> None:
    command = f"{sys.executable} -m coordinator.cli messages publish orders <&-"
    assert subprocess.run(["/bin/sh", "-c", command], check=False, stderr=subprocess.PIPE).returncode == 0
    command = f"{sys.executable} -m coordinator.cli groups seek nobody --from-file - <&-"
    ended = subprocess.run(["/bin/sh", "-c", command], check=False, stderr=subprocess.PIPE)
    assert (ended.returncode, b"bug" in ended.stderr) == (2, False), ended.stderr


def test_consume__standard_output_closed__does_not_start(on: Any, topic: str) -> None:
    publish(on, 1)
    command = f"{sys.executable} -m coordinator.cli messages consume orders --group g --exit-at-end >&-"
    assert subprocess.run(["/bin/sh", "-c", command], check=False, stderr=subprocess.DEVNULL).returncode == 5
    assert on("groups", "list", "--json").json == {"groups": []}


def test_peek__in_both_forms__moves_nothing(on: Any, topic: str) -> None:
    on("messages", "publish", topic, "--partition", 1, "--key", "k\n", "--header", "h=1", stdin=b"1\n2\n3\n")
    table = on("messages", "peek", topic, "--offset", 1, "--limit", 1)
    assert table.lines[0].split() == ["PARTITION", "OFFSET", "PUBLISHED", "KEY", "HEADERS", "VALUE"]
    assert table.lines[1].split()[:2] == ["1", "1"]
    assert "k\\n" in table.lines[1]
    assert table.lines[1].endswith("  2")
    found = on("messages", "peek", topic, "--partition", 1, "--offset", 2, "--json").objects
    assert [(message["offset"], message["key"], message["value"]) for message in found] == [(2, "k\n", 3)]
    assert on("messages", "peek", topic, "--partition", 0, "--json").out == b""
    assert on("groups", "list", "--json").json == {"groups": []}


def test_peek__partition_the_topic_lacks__says_what_it_has(on: Any, topic: str) -> None:
    ended = on("messages", "peek", topic, "--partition", 2)
    assert (ended.code, ended.out) == (2, b"")
    assert "0 to 1" in ended.err
