"""A standby takes over: with everything that was confirmed, or without the last commits (R4)."""

import asyncio
import time

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.aio import coordinator, until
from support.cluster import Cluster, run
from support.shell import GROUP, TOPIC, Publishing, Reading, committed, epochs, short, wait_until

from coordinator import Coordinator
from coordinator.db.dsn import conninfo
from coordinator.db.exchange import run_alone
from coordinator.db.schema import install
from coordinator.errors import FencedError, UnavailableError
from coordinator.protocol import admin

pytestmark = pytest.mark.direct("the servers are its own")


@pytest.fixture
def cluster(request):
    major = request.config.getoption("--postgres")
    with Cluster(synchronous=request.param, major=major) as made:
        install(made.dsn)
        yield made


asynchronous = pytest.mark.parametrize("cluster", [False], indirect=True, ids=["asynchronous"])
synchronous = pytest.mark.parametrize("cluster", [True], indirect=True, ids=["synchronous"])


def publish_fresh(cluster, count):
    """Publish on the new primary, by a client that has known no other; returns their offsets."""
    with Coordinator(cluster.dsn, client_id="fresh", settings=short()) as app:
        return {f"new {number}": app.publish(TOPIC, f"new {number}").offset for number in range(count)}


@synchronous
def test_primary__killed_under_load__nothing_confirmed_is_lost_or_comes_again(cluster):
    with Coordinator(cluster.dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 4)
        readings = [Reading(app.consumer(TOPIC, group=GROUP).start(), wait=True) for _ in range(2)]
        publishing = Publishing(app, TOPIC)
        wait_until(lambda: len(publishing.sure) > 100 and all(len(r.confirmed) > 10 for r in readings), 30)
        cluster.fail_over()
        done = len(publishing.sure)
        wait_until(lambda: len(publishing.sure) > done + 100, 60, "publishing goes on")
        publishing.stop()
        seen = lambda: {value for reading in readings for value in reading.values}  # noqa: E731
        wait_until(lambda: seen() >= set(publishing.sure), 60, "everything handled")
        for reading in readings:
            reading.stop(60)
        assert seen() <= {*publishing.sure, *publishing.unsure}
        # A message that came twice had no confirmed ack at its first coming: so at most one of them is confirmed.
        confirmed = [place for reading in readings for place in reading.confirmed]
        assert len(confirmed) == len(set(confirmed))
        assert sum(committed(cluster.dsn).values()) >= len(publishing.sure)
        assert run(cluster.dsn, "select count(*) from coordinator.crashes") == [(0,)]


@asynchronous
def test_standby_that_lacks_commits__promoted__the_owner_begins_anew_and_skips_nothing(cluster, caplog):
    """R4: progress, acks and messages of the last moments are gone, and their offsets are handed out again."""
    with Coordinator(cluster.dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 1)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            for number in range(40):
                app.publish(TOPIC, number)
            first = [wait_until(lambda: consumer.poll(1, 5))[0] for _ in range(20)]
            for message in first:
                message.ack()
            consumer.commit()
            cluster.catch_up()
            cluster.detach()
            lost = [app.publish(TOPIC, f"lost {number}").offset for number in range(60)]
            held = []
            while len(held) < 60:
                held += consumer.poll(1, 5)
                if len(held) < 50:
                    held[-1].ack()
            consumer.commit()
            before, member = epochs(cluster.dsn)[0], consumer.member_id
            cluster.fail_over()
            fresh = publish_fresh(cluster, 100)
            assert set(fresh.values()) & set(lost), "no offset was handed out again: nothing was tried"
            found = {}
            deadline_s = time.monotonic() + 60
            while len(found) < 120 and time.monotonic() < deadline_s:
                for message in consumer.poll(50, 1):
                    assert message.value not in found
                    found[message.value] = message.offset
                    message.ack()
            consumer.commit()
            with pytest.raises(FencedError):
                held[-1].ack(wait=True)
            with pytest.raises(FencedError), held[-1].transaction():
                pass
            assert {value: offset for value, offset in found.items() if value in fresh} == fresh
            assert {value for value in found if value not in fresh} == set(range(20, 40))
            assert epochs(cluster.dsn)[0] > before
            assert consumer.member_id != member
            assert committed(cluster.dsn) == {0: max(fresh.values()) + 1}
    assert "history.changed" in [record.msg for record in caplog.records]
    assert run(cluster.dsn, "select count(*) from coordinator.crashes") == [(0,)]
    assert run(cluster.dsn, "select count(*) from coordinator.coordinators where state <> 'dead'") == [(0,)]


@asynchronous
def test_transactional_handler__of_a_message_of_the_lost_history__settles_no_other_message(cluster, monkeypatch):
    """R4. The claim, with its epoch, was replicated; the message was not, and its offset is somebody else's by now.

    The handler's transaction runs on a new connection, before the coordinator has noticed: owner and epoch fit.
    """
    with Coordinator(cluster.dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 1)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            for number in range(3):
                app.publish(TOPIC, number)
                consumer.poll(1, 30)[0].ack(wait=True)
            cluster.catch_up()
            cluster.detach()
            # Sequences are logged 32 numbers ahead: what is handed out beyond them is handed out again.
            lost = []
            while len(lost) < 60:
                app.publish(TOPIC, "lost")
                (message,) = consumer.poll(1, 30)
                lost.append(message)
            runtime = consumer._runtime
            connect = runtime._connect
            away = [True]

            def unlucky(purpose):
                if away[0]:
                    raise UnavailableError("not yet")
                return connect(purpose)

            monkeypatch.setattr(runtime, "_connect", unlucky)
            cluster.fail_over()
            fresh = list(publish_fresh(cluster, 60).values())
            again = [message for message in lost if message.offset in fresh]
            assert again
            with pytest.raises((UnavailableError, FencedError)), again[-1].transaction() as connection:
                connection.execute("create table effect ()")
            away[0] = False
            found = []
            deadline_s = time.monotonic() + 60
            while len(found) < 60 and time.monotonic() < deadline_s:
                for message in consumer.poll(50, 1):
                    found.append(message.offset)
                    message.ack()
            assert sorted(found) == sorted(fresh)
    assert run(cluster.dsn, "select to_regclass('effect')") == [(None,)]


@asynchronous
def test_standby_that_lacks_commits__promoted__asyncio_begins_anew_too(cluster):
    async def scenario():
        async with coordinator(cluster.dsn) as app:
            await app.create_topic(TOPIC, 1)
            async with app.consumer(TOPIC, group=GROUP) as consumer:
                await until(lambda: consumer._runtime.assigned, 30)
                await asyncio.to_thread(cluster.catch_up)
                await asyncio.to_thread(cluster.detach)
                held = []
                for number in range(60):
                    await app.publish(TOPIC, f"lost {number}")
                while len(held) < 60:
                    held += await consumer.poll(60 - len(held), 5)
                for message in held[:50]:
                    message.ack()
                await consumer.commit()
                await asyncio.to_thread(cluster.fail_over)
                fresh = list((await asyncio.to_thread(publish_fresh, cluster, 100)).values())
                assert {message.offset for message in held[:50]} & set(fresh)
                found = []
                deadline_s = time.monotonic() + 60
                while len(found) < 100 and time.monotonic() < deadline_s:
                    for message in await consumer.poll(50, 1):
                        found.append(message.offset)
                        await message.ack(wait=True)
                assert sorted(found) == sorted(fresh)
                with pytest.raises(FencedError):
                    await held[-1].ack(wait=True)

    asyncio.run(scenario())


@asynchronous
def test_history__of_a_restart_the_same__of_a_promotion_another__of_a_standby_unknown(cluster):
    def told(dsn):
        return run(dsn, "select coordinator.history()")[0][0]

    cluster.catch_up()
    before = told(cluster.primary.dsn)
    assert told(cluster.standby.dsn) is None
    with psycopg.connect(cluster.standby.dsn, autocommit=True) as connection, pytest.raises(UnavailableError):
        # Its session would live on for ever: it is given up, and the next connection finds the primary.
        run_alone(connection, "coordinator", admin.history())
    cluster.primary.restart("immediate")
    assert told(cluster.primary.dsn) == before
    cluster.catch_up()
    cluster.fail_over()
    after = told(cluster.standby.dsn)
    assert after.split("/")[0] == before.split("/")[0]
    assert after != before


def test_dsn__of_several_hosts__leads_to_the_one_that_takes_writes_unless_it_says_otherwise():
    for dsn in ("postgresql://u@a,b/shop", "host=a,b port=1,2 dbname=shop", "postgresql://u@/shop?host=a,b"):
        assert conninfo_to_dict(conninfo(dsn))["target_session_attrs"] == "read-write"
    assert conninfo_to_dict(conninfo("postgresql://a,b/x?target_session_attrs=any"))["target_session_attrs"] == "any"
    assert "target_session_attrs" not in conninfo_to_dict(conninfo("postgresql://a/x"))
