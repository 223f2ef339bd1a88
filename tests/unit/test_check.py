"""Numbers that a column takes, and what is none."""

import pytest

from coordinator import Outgoing
from coordinator.errors import InvalidInputError
from coordinator.producer.encode import JSON, outgoing, publish_call
from coordinator.protocol.check import int4, int8, number


@pytest.mark.parametrize("value", [0, -1, 2**31 - 1, -(2**31)])
def test_int4__fits__is_returned(value):
    assert int4("partition", value) == value


@pytest.mark.parametrize("value", [True, "1", 1.0, None, 2**31, -(2**31) - 1])
def test_int4__does_not_fit__names_it(value):
    with pytest.raises(InvalidInputError, match="partition: wanted a whole number"):
        int4("partition", value)


@pytest.mark.parametrize("value", [2**53 + 1, 2**63 - 1])
def test_int8__beyond_what_a_float_has__is_exact(value):
    assert int8("offset", value) == value


def test_int8__too_large__names_it():
    with pytest.raises(InvalidInputError, match="9223372036854775808"):
        int8("offset", 2**63)


@pytest.mark.parametrize("partition", [True, "1", 1.0])
def test_publish__partition_that_is_no_int__is_refused(partition):
    with pytest.raises(InvalidInputError, match="partition"):
        publish_call(
            "t", [Outgoing(1, partition=partition)], wake=True, codec=JSON, limit_bytes=None, on_duplicate="return"
        )


@pytest.mark.parametrize("one", ["abc", b"abc", bytearray(b"abc"), {"a": 1}])
def test_batch__that_is_one_message__is_refused(one):
    with pytest.raises(InvalidInputError, match=f"found one {type(one).__name__}, wanted a list of messages"):
        outgoing("t", one, wake=True)


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan")])
def test_number__beyond_any_float__is_refused(value):
    with pytest.raises(InvalidInputError, match="seconds"):
        number("seconds", value, 0)


@pytest.mark.parametrize("place", ["value", "headers"])
def test_publish__nested_too_deeply__is_refused(place):
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    message = Outgoing(deep) if place == "value" else Outgoing(1, headers={"h": deep})
    with pytest.raises(InvalidInputError, match="cannot be encoded"):
        publish_call("t", [message], wake=True, codec=JSON, limit_bytes=None, on_duplicate="return")
