"""`coordinator messages publish`."""

import base64
import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def topic(on: Any) -> str:
    on("topics", "create", "orders", "--partitions", 3, "--max-message-bytes", 1000)
    return "orders"


def stored(on: Any, **only: Any) -> list[Any]:
    """All messages, by partition and offset."""
    found = on("messages", "peek", "orders", "--limit", 1_000_000, "--json").objects
    return [message for message in found if all(message[name] == value for name, value in only.items())]


def test_publish__json_lines__are_stored_and_summed_up(on: Any, topic: str) -> None:
    ended = on("messages", "publish", topic, "--json", "--batch-size", 2, stdin=b'{"a": 1}\n\n"two"\nnull\n[3]')
    assert ended.code == 0
    summary = ended.json
    assert (summary["topic"], summary["published"], summary["batches"]) == ("orders", 4, 2)
    assert sum(entry["published"] for entry in summary["partitions"]) == 4
    assert sorted(json.dumps(message["value"]) for message in stored(on)) == ['"two"', "[3]", "null", '{"a": 1}']


def test_publish__for_people__says_how_many(on: Any, topic: str) -> None:
    ended = on("messages", "publish", topic, stdin=b"1\n")
    assert ended.text.startswith("published 1 message to orders")
    assert ended.err == ""


def test_publish__nothing__is_no_error(on: Any, topic: str) -> None:
    assert on("messages", "publish", topic, "--json").json["published"] == 0


def test_publish__key_field__keeps_a_key_in_one_partition(on: Any, topic: str) -> None:
    lines = b"".join(b'{"k": %d, "n": %d}\n' % (n % 7, n) for n in range(70)) + b'{"k": null}\n{}\n'
    assert on("messages", "publish", topic, "--key-field", "k", stdin=lines).code == 0
    for key in range(7):
        found = stored(on, key=str(key))
        assert [message["value"]["n"] for message in found] == list(range(key, 70, 7))
        assert len({message["partition"] for message in found}) == 1
    assert len(stored(on, key=None)) == 2


def test_publish__objects_without_the_field_of_the_key__are_counted(on: Any, topic: str) -> None:
    lines = b'{"k": 1}\n{"k": null}\n{}\n\n{"other": 2}\n'
    ended = on("messages", "publish", topic, "--key-field", "k", "--batch-size", 1, "--json", stdin=lines)
    assert (ended.code, ended.json["published"], ended.json["without_key_field"]) == (0, 4, 2)
    assert ended.err.startswith("warning: 2 of 4 objects have no field 'k', the first in line 3")
    assert on("messages", "publish", topic, "--key-field", "k", stdin=b'{"k": null}\n').err == ""


@pytest.mark.parametrize("line", [b"{}", b'{"k": null}'])
def test_publish__require_key__ends_at_an_object_without_one(on: Any, topic: str, line: bytes) -> None:
    ended = on("messages", "publish", topic, "--key-field", "k", "--require-key", stdin=b'{"k": 1}\n' + line)
    assert (ended.code, stored(on)) == (2, [])
    assert "line 2: found no key in the field 'k'" in ended.err


def test_publish__key_headers_and_partition__are_those_of_every_message(on: Any, topic: str) -> None:
    options = ("--key", "k", "--header", "a=1", "--header", "b=x=y", "--partition", 2)
    assert on("messages", "publish", topic, *options, stdin=b"1\n2\n").code == 0
    for message in stored(on):
        assert (message["key"], message["headers"], message["partition"]) == ("k", {"a": "1", "b": "x=y"}, 2)


def test_publish__header_given_twice__is_a_usage_error(on: Any, topic: str) -> None:
    ended = on("messages", "publish", topic, "--header", "a=1", "--header", "a=2", stdin=b"1\n")
    assert (ended.code, stored(on)) == (2, [])
    assert "'a' is given twice" in ended.err


def test_publish__raw_lines_of_any_bytes__come_back_exactly(on: Any, topic: str) -> None:
    lines = [bytes([byte]) * 3 for byte in range(256) if byte != 0x0A] + [b"", b"plain text"]
    assert on("messages", "publish", topic, "--raw", "--partition", 0, stdin=b"\n".join(lines) + b"\n").code == 0
    found = stored(on)
    assert len(found) == len(lines)
    assert {message["content_type"] for message in found} == {"application/octet-stream"}

    for message, line in zip(found, lines, strict=True):
        value = message["value"]
        if isinstance(value, dict):
            assert base64.b64decode(value["payload_base64"]) == line
        else:
            assert value == json.loads(line)


def test_publish__whole_file__is_one_message(on: Any, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "photo"
    file.write_bytes(b"\x89\n\x00\xff")
    assert on("messages", "publish", topic, file, "--whole", "--json").json["published"] == 1
    assert [message["value"] for message in stored(on)] == [{"payload_base64": "iQoA/w=="}]


def test_publish__gzip_file__is_unpacked(on: Any, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl.gz"
    file.write_bytes(gzip.compress(b"1\n2\n"))
    assert on("messages", "publish", topic, file, "--json").json["published"] == 2


@pytest.mark.parametrize("broken", ["cut", "other"])
def test_publish__broken_gzip_file__is_told(on: Any, topic: str, tmp_path: Path, broken: str) -> None:
    file = tmp_path / "orders.jsonl.gz"
    file.write_bytes(gzip.compress(b"1\n2\n")[:-9] if broken == "cut" else b"1\n2\n")
    ended = on("messages", "publish", topic, file)
    assert (ended.code, ended.out) == (2, b"")
    assert "gzip" in ended.err


def test_publish__bad_line__sends_nothing_of_its_batch(on: Any, topic: str) -> None:
    ended = on("messages", "publish", topic, "--batch-size", 2, stdin=b"1\n2\n3\n{oops}\n5\n")
    assert (ended.code, ended.out) == (2, b"")
    assert "error: line 4: found '{oops}', wanted one JSON value" in ended.err
    assert "2 messages were published before" in ended.err
    assert sorted(message["value"] for message in stored(on)) == [1, 2]


def test_publish__message_too_large__names_the_line_and_sends_nothing(on: Any, topic: str) -> None:
    for form in ((), ("--raw",)):
        ended = on("messages", "publish", topic, *form, stdin=b'1\n"' + b"x" * 1001 + b'"\n')
        assert (ended.code, ended.out) == (2, b"")
        assert "line 2" in ended.err
    assert stored(on) == []


@pytest.mark.parametrize(
    "options",
    [
        ("--raw", "--whole"),
        ("--key", "a", "--key-field", "b"),
        ("--raw", "--key-field", "b"),
        ("--require-key",),
        ("--header", "novalue"),
        ("--partition", "-1"),
        ("--batch-size", "0"),
        ("no-such-file",),
    ],
    ids=" ".join,
)
def test_publish__options_that_exclude_each_other__are_usage_errors(
    on: Any, topic: str, options: tuple[str, ...]
) -> None:
    ended = on("messages", "publish", topic, *options, stdin=b"1\n")
    assert (ended.code, ended.out) == (2, b"")
    assert stored(on) == []


def test_publish__partition_the_topic_lacks__says_what_it_has(on: Any, topic: str) -> None:
    ended = on("messages", "publish", topic, "--partition", 3, stdin=b"1\n")
    assert (ended.code, ended.out) == (2, b"")
    assert "0 to 2" in ended.err
    assert "0 messages were published before; nothing of line 1 was" in ended.err


def test_publish__slow_input__is_sent_before_its_end(on: Any, topic: str, start: Any) -> None:
    process = start("messages", "publish", topic, stdin=subprocess.PIPE)
    process.stdin.write(b"1\n2\n")
    process.stdin.flush()
    limit_s = time.monotonic() + 30
    while len(stored(on)) < 2:
        assert time.monotonic() < limit_s
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(30) == 0


def test_publish__interrupted__says_how_far_it_came(on: Any, topic: str, start: Any) -> None:

    process = start("messages", "publish", topic, stdin=subprocess.PIPE)
    process.stdin.write(b"1\n2\n")
    process.stdin.flush()
    limit_s = time.monotonic() + 30
    while len(stored(on)) < 2:
        assert time.monotonic() < limit_s
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stderr.read().decode() == "2 messages were published before\ninterrupted\n"


def test_publish__100_000_lines__need_no_more_memory_than_few(on: Any, topic: str, tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    line = b'{"k": "a", "filler": "' + b"x" * 300 + b'"}\n'
    few.write_bytes(line * 1_000)
    many.write_bytes(line * 100_000)
    peaks_kib = []
    for file in (few, many):
        ended = subprocess.run(
            [sys.executable, "-c", _MEASURED, "messages", "publish", topic, str(file), "--key-field", "k"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        peaks_kib.append(int(ended.stderr))
    # 33 MB of lines; what it may cost is noise of the allocator.
    assert peaks_kib[1] - peaks_kib[0] < 10_000, peaks_kib


# ru_maxrss of a child starts with its parent's, but for a process that has called exec it is VmHWM that counts.
_MEASURED = """
import atexit, sys
from coordinator.cli.main import main
def tell():
    status = open('/proc/self/status').read()
    print(status.split('VmHWM:')[1].split()[0], file=sys.stderr)
atexit.register(tell)
main()
"""
