"""Every call of the public API says what it found and what it wanted, by a class of its own, before it sends anything."""

import asyncio
import inspect
from datetime import datetime

import pytest
from support.shell import query

from coordinator import AsyncCoordinator, Coordinator, Outgoing, Settings
from coordinator.errors import ConfigError, InvalidInputError

NAN = float("nan")
NAIVE = datetime(2030, 1, 1)
NO_TEXT = [7, b"orders", None, True, ["orders"], "a\0b", "\udcff"]
NO_COUNT = ["4", True, NAN, 4.0, b"4", -1, 0, 2**70]
NO_NUMBER = ["4", True, NAN, float("inf"), b"4", -1]
NO_FLAG = ["no", 0, 1, None]

# The name of what is wrong; the call, given an application and the value; the values.
CALLS = {
    "topic": (
        [
            lambda app, value: app.create_topic(value),
            lambda app, value: app.topic(value),
            lambda app, value: app.rotate(value),
            lambda app, value: app.publish(value, 1),
            lambda app, value: app.publish_many(value, [1]),
            lambda app, value: app.peek(value, partition=0),
            lambda app, value: app.message_states(value, 0, 0),
            lambda app, value: app.alter_topic(value, wake=True),
            lambda app, value: app.add_partitions(value, 2),
            lambda app, value: app.delete_topic(value),
            lambda app, value: app.set_topic_rights(value, publish=None, subscribe=None),
            lambda app, value: app.skip("billing", value, 0, 0),
            lambda app, value: app.cancel_scheduled(value, [1]),
        ],
        NO_TEXT,
    ),
    "group": (
        [
            lambda app, value: app.pause(value),
            lambda app, value: app.resume(value),
            lambda app, value: app.seek(value, to="earliest"),
            lambda app, value: app.skip(value, "orders", 0, 0),
            lambda app, value: app.delete_group(value),
            lambda app, value: app.set_group_expiry(value, 60.0),
            lambda app, value: app.group_offsets(value),
            lambda app, value: app.group_in_flight(value),
            lambda app, value: app.oldest_unsettled(value),
            lambda app, value: app.dead_letters(value).list(),
            lambda app, value: app.consumer("orders", group=value),
        ],
        NO_TEXT,
    ),
    "partitions": (
        [lambda app, value: app.create_topic("t", value), lambda app, value: app.add_partitions("orders", value)],
        NO_COUNT,
    ),
    "max_message_bytes": (
        [
            lambda app, value: app.create_topic("t", max_message_bytes=value),
            lambda app, value: app.alter_topic("orders", max_message_bytes=value),
        ],
        [*NO_COUNT, None],
    ),
    "wake": (
        [
            lambda app, value: app.create_topic("t", wake=value),
            lambda app, value: app.alter_topic("orders", wake=value),
            lambda app, value: app.publish("orders", 1, wake=value),
            lambda app, value: app.publish_many("orders", [1], wake=value),
        ],
        NO_FLAG,
    ),
    "dedup_window_s": ([lambda app, value: app.create_topic("t", dedup_window_s=value)], NO_NUMBER),
    "max_backlog": ([lambda app, value: app.create_topic("t", max_backlog=value)], NO_COUNT),
    "retention_s": (
        [
            lambda app, value: app.create_topic("t", retention_s=value),
            lambda app, value: app.alter_topic("orders", retention_s=value),
        ],
        NO_NUMBER,
    ),
    "retention_bytes": ([lambda app, value: app.create_topic("t", retention_bytes=value)], NO_COUNT),
    "segment_max_bytes": ([lambda app, value: app.create_topic("t", segment_max_bytes=value)], NO_COUNT),
    "unconsumed": ([lambda app, value: app.create_topic("t", unconsumed=value)], ["all", None, 1]),
    "limit": (
        [
            lambda app, value: app.peek("orders", limit=value),
            lambda app, value: app.scheduled(limit=value),
            lambda app, value: app.dead_letters("billing").list(limit=value),
            lambda app, value: app.dead_letters("billing").replay(limit=value),
        ],
        NO_COUNT,
    ),
    "from_offset": ([lambda app, value: app.peek("orders", from_offset=value)], ["0", True, NAN, None, -1]),
    "partition": (
        [
            lambda app, value: app.peek("orders", partition=value),
            lambda app, value: app.publish("orders", 1, partition=value),
            lambda app, value: app.skip("billing", "orders", value, 0),
            lambda app, value: app.message_states("orders", value, 0),
            lambda app, value: app.dead_letters("billing").list(partition=value),
        ],
        ["0", True, NAN, 0.0, b"0"],
    ),
    "offset": (
        [
            lambda app, value: app.skip("billing", "orders", 0, value),
            lambda app, value: app.message_states("orders", 0, value),
            lambda app, value: app.dead_letters("billing").get("orders", 0, value),
        ],
        ["0", True, NAN, 0.0, b"0", 2**63],
    ),
    "key": ([lambda app, value: app.publish("orders", 1, key=value)], [7, b"k", True, "a\0b", "\udcff"]),
    "headers": ([lambda app, value: app.publish("orders", 1, headers=value)], ["x", [1], {1: 2}, {"a": NAN}]),
    "correlation_id": ([lambda app, value: app.publish("orders", 1, correlation_id=value)], [7, b"x"]),
    "traceparent": ([lambda app, value: app.publish("orders", 1, traceparent=value)], [7, b"x"]),
    "message_id": ([lambda app, value: app.publish("orders", 1, message_id=value)], [7, b"x", "no-uuid"]),
    "dedup key": ([lambda app, value: app.publish("orders", 1, dedup_key=value)], [7, b"x", "a\0"]),
    "on_duplicate": ([lambda app, value: app.publish("orders", 1, on_duplicate=value)], ["skip", None]),
    "delay_s": ([lambda app, value: app.publish("orders", 1, delay_s=value)], NO_NUMBER),
    "deliver_at": ([lambda app, value: app.publish("orders", 1, deliver_at=value)], ["2030-01-01", NAIVE, 7]),
    "connection": ([lambda app, value: app.publish("orders", 1, connection=value)], ["postgresql://h/d", 7]),
    "messages": ([lambda app, value: app.publish_many("orders", value)], ["abc", b"abc", {"a": 1}, 7, None]),
    "to": ([lambda app, value: app.seek("billing", to=value)], ["first", True, NAN, NAIVE, b"1", 2**63]),
    "by": ([lambda app, value: app.seek("billing", by=value)], ["1", True, NAN, 2**63]),
    "offsets": (
        [lambda app, value: app.seek("billing", offsets=value)],
        [[1], {"orders": 1}, {("orders", 0): "1"}, {("orders", 0): True}],
    ),
    "force": (
        [
            lambda app, value: app.seek("billing", to="earliest", force=value),
            lambda app, value: app.delete_group("billing", force=value),
            lambda app, value: app.delete_topic("orders", force=value),
        ],
        NO_FLAG,
    ),
    "dry_run": (
        [
            lambda app, value: app.seek("billing", to="earliest", dry_run=value),
            lambda app, value: app.skip("billing", "orders", 0, 0, dry_run=value),
            lambda app, value: app.dead_letters("billing").replay(dry_run=value),
            lambda app, value: app.dead_letters("billing").purge(dry_run=value),
        ],
        NO_FLAG,
    ),
    "reason": (
        [
            lambda app, value: app.pause("billing", reason=value),
            lambda app, value: app.seek("billing", to="earliest", reason=value),
            lambda app, value: app.delete_topic("orders", reason=value),
        ],
        [7, b"x", "a\0"],
    ),
    "expire_s": ([lambda app, value: app.set_group_expiry("billing", value)], NO_NUMBER),
    "on_expiry": ([lambda app, value: app.set_group_expiry("billing", 60.0, value)], ["drop", None]),
    "publish": ([lambda app, value: app.set_topic_rights("orders", publish=value, subscribe=None)], ["bob", [7], 7]),
    "schedule_ids": ([lambda app, value: app.cancel_scheduled("orders", value)], ["1", 7, ["1"], [NAN]]),
    "rate": ([lambda app, value: app.dead_letters("billing").replay(rate=value)], [*NO_NUMBER, 0]),
    "max_dead_letters": ([lambda app, value: app.dead_letters("billing").set_max(value)], ["4", True, NAN, -1]),
    "since": ([lambda app, value: app.dead_letters("billing").list(since=value)], ["2030-01-01", NAIVE, 7]),
    "error": ([lambda app, value: app.dead_letters("billing").list(error=value)], [7, b"x", "a\0"]),
    "after": ([lambda app, value: app.dead_letters("billing").list(after=value)], ["x", 7]),
    "member_id": ([lambda app, value: app.evict(value), lambda app, value: app.drain(value)], ["x", 7, None]),
    "concurrency": ([lambda app, value: app.subscribe("orders", group="g", concurrency=value)], NO_COUNT),
    "batch_size": ([lambda app, value: app.subscribe("orders", group="g", batch_size=value)], NO_COUNT),
    "max_attempts": (
        [
            lambda app, value: app.subscribe("orders", group="g", max_attempts=value),
            lambda app, value: app.consumer("orders", group="g", max_attempts=value),
        ],
        ["4", True, NAN, 0, -1, None],
    ),
    "ordering": ([lambda app, value: app.consumer("orders", group="g", ordering=value)], ["keys", None, 7, ["key"]]),
    "start": ([lambda app, value: app.consumer("orders", group="g", start=value)], ["first", NAIVE, 7, None, []]),
    "max_rate": (
        [lambda app, value: app.consumer("orders", group="g", max_rate=value)],
        ["4", True, NAN, 0, -1, float("inf")],
    ),
    "max_processing_s": (
        [lambda app, value: app.subscribe("orders", group="g", max_processing_s=value)],
        ["4", True, NAN, -1, None],
    ),
    "retry": (
        [lambda app, value: app.consumer("orders", group="g", retry=value)],
        ["1,2", [], [-1], ["1"], [NAN], 5, [True]],
    ),
    "on_error": (
        [lambda app, value: app.consumer("orders", group="g", on_error=value)],
        [7, {"KeyError": "reject"}, {KeyError: "drop"}, {KeyError: -1}, {KeyError: NAN}, {KeyError: True}],
    ),
    "transactional": ([lambda app, value: app.subscribe("orders", group="g", transactional=value)], NO_FLAG),
    "on_dead_letter": ([lambda app, value: app.consumer("orders", group="g", on_dead_letter=value)], ["f", 7]),
    "auto_ack": ([lambda app, value: app.consumer("orders", group="g", auto_ack=value)], NO_FLAG),
    "static_id": ([lambda app, value: app.consumer("orders", group="g", static_id=value)], ["", 7, b"x", "x" * 201]),
}
SETTINGS = [
    ("lease_s", "10"),
    ("lease_s", NAN),
    ("prefetch", 4.0),
    ("prefetch", True),
    ("listen", "no"),
    ("pooler", "pgbouncer"),
    ("pool_size", 0),
    ("metrics_port", "9187"),
    ("metrics_host", None),
    ("max_parked", None),
]


@pytest.fixture
def faces(dsn):
    """Both, on a database where nothing is there: who would send anything meets NotFoundError."""
    return lambda: Coordinator(dsn), lambda: AsyncCoordinator(dsn)


def done(face, call, value):
    """Make a call on an application of its own loop."""
    app = face()
    if isinstance(app, Coordinator):
        with app:
            call(app, value)
        return

    async def awaited():
        async with app:
            result = call(app, value)
            if inspect.isawaitable(result):
                await result

    asyncio.run(awaited())


@pytest.mark.parametrize("name", CALLS)
def test_argument__of_a_wrong_type_or_value__is_named_with_what_was_found_and_wanted(faces, name):
    calls, values = CALLS[name]
    for number, call in enumerate(calls):
        for value in values:
            for face in faces:
                told = f"{name}, call {number}, {value!r}"
                try:
                    done(face, call, value)
                except (ConfigError, InvalidInputError) as error:
                    text = str(error)
                else:
                    pytest.fail(f"taken: {told}")
                assert name in text or repr(value) in text, f"{told}: {text}"
                assert "found" in text or "wanted" in text or "is no" in text or "encoded" in text or "holds" in text, (
                    f"{told}: {text}"
                )
                assert "message 0" not in text, told


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_setting__of_a_wrong_type_or_value__is_named(name, value):
    with pytest.raises(ConfigError, match=f"{name} is .*found"):
        Settings(**{name: value})


def test_argument__of_a_wrong_type__is_told_with_its_type(faces):
    with pytest.raises(InvalidInputError) as refused:
        done(faces[0], lambda app, value: app.create_topic("t", value), "4")
    assert str(refused.value) == "partitions: wanted a whole number from 1 to 1024, found '4', of type str"


def test_batch__with_one_bad_message__says_which(faces):
    with pytest.raises(InvalidInputError, match=r"^message 1: the key is int, wanted str$"):
        done(faces[0], lambda app, value: app.publish_many("orders", value), [Outgoing(1), Outgoing(1, 7)])


@pytest.mark.parametrize(
    "arguments", [{"max_messages": "3"}, {"max_messages": 0}, {"timeout_s": "1"}, {"timeout_s": NAN}]
)
def test_poll__of_a_wrong_type_or_value__is_refused(dsn, arguments):
    with Coordinator(dsn) as app, pytest.raises(ConfigError, match=f"{next(iter(arguments))}: wanted"):
        app.consumer("orders", group="g").poll(**arguments)


def test_message__settled_with_a_wrong_type__says_so_and_stays_live(dsn):
    with Coordinator(dsn) as app:
        app.create_topic("orders")
        app.publish("orders", 1)
        with app.consumer("orders", group="g") as consumer:
            (message,) = consumer.poll(timeout_s=30)
            for call in (
                lambda: message.nack(delay_s="soon"),
                lambda: message.reject(7),
                lambda: message.extend("5"),
                lambda: message.extend(NAN),
            ):
                with pytest.raises(InvalidInputError, match="wanted"):
                    call()
            message.ack(wait=True)
        assert query(dsn, "select count(*) from coordinator.retries") == [(0,)]
        assert app.group_offsets("g")[0].lag == 0
