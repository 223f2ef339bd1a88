"""The name that was meant: said by whatever function, and by Python, of a topic or group that there is not."""

import asyncio

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.shell import query

from coordinator import AsyncCoordinator, Coordinator
from coordinator.errors import DeniedError, NotFoundError


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ordrs", "orders"),
        ("order", "orders"),
        ("Orders", "orders"),
        ("oders", "orders"),
        ("payment", "payments"),
        ("orders-eu", "orders.eu"),
        ("stock", None),
        ("x", None),
        ("", None),
        ("\N{SNOWMAN}", None),
        ("o" * 5000, None),
    ],
)
def test_nearest__names_what_was_meant(dsn, name, meant):
    known = "array['orders', 'orders.eu', 'payments', 'x-ray']"
    assert query(dsn, f"select coordinator.nearest(%s, {known})", name) == [(meant,)]


@pytest.fixture
def app(dsn):
    with Coordinator(dsn) as made:
        made.create_topic("orders")
        made.consumer("orders", group="billing").close()
        query(dsn, "select coordinator.join_group(null, 'billing', '{orders}', 'earliest', null)")
        yield made


TOPIC = [
    lambda app: app.topic("ordrs"),
    lambda app: app.publish("ordrs", 1),
    lambda app: app.peek("ordrs", partition=0),
    lambda app: app.message_states("ordrs", 0, 0),
    lambda app: app.alter_topic("ordrs", wake=True),
    lambda app: app.add_partitions("ordrs", 2),
    lambda app: app.delete_topic("ordrs"),
    lambda app: app.rotate("ordrs"),
    lambda app: app.cancel_scheduled("ordrs", [1]),
    lambda app: app.set_topic_rights("ordrs", publish=None, subscribe=None),
    lambda app: app.skip("billing", "ordrs", 0, 0),
    lambda app: app.dead_letters("billing").list(topic="ordrs"),
    lambda app: app.consumer("ordrs", group="billing").poll(timeout_s=5),
]
GROUP = [
    lambda app: app.pause("biling"),
    lambda app: app.seek("biling", to="earliest"),
    lambda app: app.skip("biling", "orders", 0, 0),
    lambda app: app.delete_group("biling"),
    lambda app: app.group_offsets("biling"),
    lambda app: app.oldest_unsettled("biling"),
    lambda app: app.set_group_expiry("biling", 60.0),
    lambda app: app.dead_letters("biling").list(),
    lambda app: app.health(group="biling"),
]


@pytest.mark.parametrize("call", TOPIC)
def test_topic__that_there_is_not__names_the_one_that_was_meant(app, call):
    with pytest.raises(NotFoundError) as raised:
        call(app)
    assert str(raised.value) == "there is no topic 'ordrs'"
    assert raised.value.hint.startswith("Did you mean orders? ")
    assert "coordinator topics list" in raised.value.hint


@pytest.mark.parametrize("call", GROUP)
def test_group__that_there_is_not__names_the_one_that_was_meant(app, call):
    with pytest.raises(NotFoundError) as raised:
        call(app)
    assert str(raised.value) == "there is no group 'biling'"
    assert raised.value.hint.startswith("Did you mean billing? ")
    assert "coordinator groups list" in raised.value.hint


def test_group__on_asyncio__names_the_one_that_was_meant(app, dsn):
    async def ask():
        async with AsyncCoordinator(dsn) as there:
            await there.group_offsets("biling")

    with pytest.raises(NotFoundError) as raised:
        asyncio.run(ask())
    assert raised.value.hint.startswith("Did you mean billing? ")


def test_topic__that_the_group_does_not_read__names_those_that_it_reads(app):
    app.create_topic("payments")
    with pytest.raises(NotFoundError, match="reads no topic 'payments'") as raised:
        app.seek("billing", "payments", to="earliest")
    assert raised.value.hint == "It reads: orders"


def test_group__whose_topics_are_deleted__is_no_group_that_there_is_not(app):
    """It was told that it does not exist, with itself for what may have been meant."""
    app.delete_topic("orders", force=True)
    assert app.seek("billing", to="earliest") == []
    with pytest.raises(NotFoundError, match="reads no topic 'orders'") as raised:
        app.seek("billing", "orders", to="earliest")
    assert raised.value.hint == "It reads: nothing any more"
    app.delete_group("billing", force=True)
    assert app.groups() == []


@pytest.mark.direct("a pooler has users of its own")
def test_denied__says_who_can_give_the_right(app, dsn):
    role = "hints_" + dsn_name(dsn)
    query(dsn, f"create role {role} login password 'x'; grant usage on schema coordinator to {role}")
    query(dsn, "revoke execute on function coordinator.peek from public")
    try:
        with Coordinator(make_conninfo(dsn, user=role, password="x")) as stranger, pytest.raises(DeniedError) as raised:
            stranger.peek("orders", partition=0)
        assert "coordinator db grants --role" in raised.value.hint
    finally:
        query(dsn, f"drop owned by {role}; drop role {role}")


def dsn_name(dsn):
    return conninfo_to_dict(dsn)["dbname"].rpartition("_")[2]
