"""Lines to messages, without a database."""

import io
import os
import threading
from typing import Any

import pytest

from coordinator.cli.publishing import Form, batches, lines
from coordinator.errors import InvalidInputError

LIMIT = 1_000_000


def values(data: bytes, form: Form | None = None, *, batch_size: int = 500, limit: int = LIMIT) -> list[Any]:
    found = batches(io.BytesIO(data), form or Form(), batch_size=batch_size, max_message_bytes=limit)
    return [message.value for batch in found for message in batch.messages]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\n", [b"a", b""]),
        (b"\na\r\n", [b"", b"a\r"]),
        (b"\x00\xff\nb", [b"\x00\xff", b"b"]),
        (b"x" * 700_000 + b"\n" + b"y" * 700_000, [b"x" * 700_000, b"y" * 700_000]),
    ],
)
def test_lines__any_bytes__are_kept_but_for_the_line_feed(data: bytes, found: list[bytes]) -> None:
    assert [line for line in lines(io.BytesIO(data), LIMIT) if line is not None] == found
    assert values(data, Form(raw=True)) == found


def test_lines__slow_pipe__says_when_nothing_more_comes() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        found = lines(stream, LIMIT)
        os.write(writing, b"one\ntw")
        assert next(found) == b"one"
        assert next(found) is None
        # The rest comes while the reader waits; it must not be told a second time that nothing came.
        timer = threading.Timer(0.3, lambda: (os.write(writing, b"o\n"), os.close(writing)))
        timer.start()
        assert next(found) == b"two"
        assert list(found) == []
        timer.join()


def test_batches__many_lines__are_cut_by_count_and_by_bytes() -> None:
    counted = list(batches(io.BytesIO(b"1\n\n2\n3\n"), Form(), batch_size=2, max_message_bytes=LIMIT))
    assert [(batch.first_line, batch.last_line) for batch in counted] == [(1, 3), (4, 4)]
    large = (b"x" * 900_000 + b"\n") * 20
    sized = list(batches(io.BytesIO(large), Form(raw=True), batch_size=500, max_message_bytes=LIMIT))
    assert [len(batch.messages) for batch in sized] == [10, 10]


def test_json_lines__good_ones__are_parsed() -> None:
    assert values(b'\xef\xbb\xbf{"a": 1}\n\n  \nnull\n"\xc3\xbc"\n[1.5, 123456789012345678901234567890]') == [
        {"a": 1},
        None,
        "ü",
        [1.5, 123456789012345678901234567890],
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"{} {}",
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b"\xff",
        b'"\\ud800"',
        b"1\x00\x00\x00",
        b"[" * 100_000,
        b"9" * 10_000,
        b"'a'",
    ],
)
def test_json_lines__bad_one__names_the_line(line: bytes) -> None:
    with pytest.raises(InvalidInputError, match="line 3: found"):
        values(b"1\n2\n" + line + b"\n4\n")


@pytest.mark.parametrize("form", [Form(), Form(raw=True)], ids=["json", "raw"])
def test_line__larger_than_the_topic_takes__names_the_line(form: Form) -> None:
    with pytest.raises(InvalidInputError, match="line 2: found"):
        values(b'"a"\n"' + b"x" * 100 + b'"\n', form, limit=100)
    # Found before all of it is in memory.
    with pytest.raises(InvalidInputError, match="line 1: found"):
        values(b'"' + b"x" * 10_000_000, form, limit=100)


def test_whole__too_large__is_refused() -> None:
    assert values(b"\x00\n\xff", Form(whole=True), limit=3) == [b"\x00\n\xff"]
    assert values(b"", Form(whole=True)) == [b""]
    with pytest.raises(InvalidInputError, match="more than 3 bytes"):
        values(b"abcd", Form(whole=True), limit=3)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"k": "a"}', "a"),
        (b'{"k": ""}', ""),
        (b'{"k": 12345678901234567890}', "12345678901234567890"),
        (b'{"k": null}', None),
        (b'{"other": 1}', None),
    ],
)
def test_key_field__string_number_or_nothing__is_the_key(line: bytes, key: str | None) -> None:
    (batch,) = batches(io.BytesIO(line), Form(key_field="k"), batch_size=1, max_message_bytes=LIMIT)
    assert [message.key for message in batch.messages] == [key]


@pytest.mark.parametrize(
    "line", [b"[]", b"1", b'{"k": true}', b'{"k": []}', b'{"k": "\\u0000"}', b'{"k": "' + b"x" * 1025 + b'"}']
)
def test_key_field__no_key_in_it__names_the_line(line: bytes) -> None:
    with pytest.raises(InvalidInputError, match="line 2: found"):
        values(b"{}\n" + line, Form(key_field="k"))
