"""`coordinator members`."""

import uuid
from typing import Any

import psycopg
import pytest

from coordinator import Coordinator


@pytest.fixture
def app(dsn: str) -> Any:
    with Coordinator(dsn, client_id="one") as made:
        made.create_topic("t", 2)
        yield made


def test_list__processes_and_what_waits__are_shown(call: Any, app: Coordinator, dsn: str) -> None:
    with app.consumer("t", group="g", static_id="a"):
        ended = call("members", "list", "--dsn", dsn, "--json")
        (member,) = ended.json["members"]
        assert (member["client_id"], member["static_id"], member["state"]) == ("one", "a", "alive")
        assert member["groups"] == ["g"]
        assert ended.json["hand_overs"] == []
        table = call("members", "list", "--dsn", dsn)
        assert table.code == 0
        assert "STATIC-ID" in table.text
        assert member["member_id"] in table.text
    # Its place is kept.
    assert call("members", "list", "--dsn", dsn, "--json").json["members"][0]["state"] == "away"


def test_drain_and_evict__a_member__change_its_state(call: Any, app: Coordinator, dsn: str) -> None:
    with app.consumer("t", group="g") as consumer:
        me = consumer.member_id
        assert call("members", "drain", me, "--dsn", dsn).code == 0
        assert app.members()[0].state == "draining"
        assert call("members", "drain", me, "--undo", "--dsn", dsn, "--json").json["member_id"] == me
        assert app.members()[0].state == "alive"
        assert call("members", "evict", me, "--dsn", dsn).code == 0
        assert {str(one.member_id): one.state for one in app.members(dead=True)}[me] == "dead"


def test_evict__no_such_member__is_refused(call: Any, app: Coordinator, dsn: str) -> None:
    assert app.members() == []
    ended = call("members", "evict", str(uuid.uuid4()), "--dsn", dsn)
    assert ended.code not in (0, 3)
    assert "no living coordinator" in ended.err
    assert call("members", "evict", "x", "--dsn", dsn).code == 2


def test_blocked__a_claim_is_held__says_by_whom_with_exit_code_1(call: Any, app: Coordinator, dsn: str) -> None:
    app.consumer("t", group="g").start().close()
    assert call("members", "blocked", "--dsn", dsn, "--json").json == {"blocked_claims": []}
    with psycopg.connect(dsn, application_name="culprit") as connection:
        connection.execute("select 1 from coordinator.claims where partition = 1 for update")
        ended = call("members", "blocked", "--dsn", dsn)
        assert ended.code == 1
        assert "culprit" in ended.text
        ((pid,),) = connection.execute("select pg_backend_pid()").fetchall()
        assert str(pid) in ended.text
