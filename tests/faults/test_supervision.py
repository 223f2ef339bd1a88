"""Background loops that end by an error, listeners that hear nothing, sockets that nobody closes."""

import asyncio
import contextlib
import time

import pytest
from support.aio import Running, coordinator, until
from support.proxy import Fault, Proxy
from support.shell import GROUP, TOPIC, Reading, publish, query, short, wait_until

from coordinator import Coordinator
from coordinator.consumer import control, listening, runtime
from coordinator.consumer.pacing import pause_s
from coordinator.db.connect import listen_statement
from coordinator.errors import LoopFailedError

LOOPS = {"work": "_carry_out", "control": "_reconcile"}


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="test", settings=short()) as made:
        made.create_topic(TOPIC, 2)
        yield made


@pytest.mark.parametrize("method", LOOPS.values(), ids=LOOPS)
def test_loop__ended_once_by_an_error__begins_again_and_nothing_is_lost(app, dsn, monkeypatch, caplog, method):
    consumer = app.consumer(TOPIC, group=GROUP).start()
    reading = Reading(consumer)
    publish(app, 20)
    wait_until(lambda: len(set(reading.values)) == 20, 30)
    works, fails = getattr(consumer._runtime, method), [True]

    def once(*arguments):
        if fails.pop() if fails else False:
            raise RuntimeError("a bug")
        return works(*arguments)

    monkeypatch.setattr(consumer._runtime, method, once)
    publish(app, 20, start=20)
    wait_until(lambda: "loop.restarted" in [record.msg for record in caplog.records], 30)
    publish(app, 20, start=40)
    wait_until(lambda: set(reading.values) == set(range(60)), 30)
    wait_until(lambda: consumer.status().healthy, 30)
    reading.stop()
    assert query(dsn, "select count(*) from coordinator.crashes") == [(0,)]


@pytest.mark.parametrize("method", LOOPS.values(), ids=LOOPS)
def test_loop__ends_again_and_again__run_raises(app, monkeypatch, method):
    def always(*_arguments):
        raise RuntimeError("a bug")

    monkeypatch.setattr(runtime.Runtime, method, always)
    app.subscribe(TOPIC, group=GROUP)(lambda _message: None)
    publish(app, 1)
    with pytest.raises(LoopFailedError) as raised:
        app.run(install_signal_handlers=False)
    assert isinstance(raised.value.__cause__, RuntimeError)


@pytest.mark.parametrize("method", LOOPS.values(), ids=LOOPS)
def test_loop__on_asyncio__begins_again_and_fails_in_the_end(dsn, monkeypatch, caplog, method):
    async def scenario():
        async with coordinator(dsn) as app:
            await app.create_topic(TOPIC, 1)
            seen = []

            @app.subscribe(TOPIC, group=GROUP)
            async def handle(message):
                seen.append(message.value)

            async with Running(app) as running:
                await app.publish(TOPIC, 0)
                await until(lambda: seen == [0], 30)
                works, left = getattr(app._running, method), [3]

                async def at_times(*arguments):
                    if left[0]:
                        left[0] -= 1
                        raise RuntimeError("a bug")
                    return await works(*arguments)

                monkeypatch.setattr(app._running, method, at_times)
                await app.publish(TOPIC, 1)
                await until(lambda: left == [0], 30)
                await until(lambda: 1 in seen, 30)
                left[0] = 1
                await app.publish(TOPIC, 2)
                with pytest.raises(LoopFailedError):
                    await asyncio.wait_for(running.task, 30)

    with contextlib.suppress(LoopFailedError):
        asyncio.run(scenario())
    assert [record.msg for record in caplog.records].count("loop.restarted") == 3


@pytest.mark.direct("a listener needs a session")
def test_listener__deaf_on_its_first_session__is_found_and_made_anew(app, monkeypatch):
    monkeypatch.setattr(listening, "_PATIENCE_S", 1.0)
    deaf = [True]

    def unlucky(channel):
        return listen_statement("elsewhere" if deaf else channel)

    monkeypatch.setattr(control, "listen_statement", unlucky)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        # It has sent LISTEN, to the wrong channel.
        wait_until(lambda: consumer.status().wake_ups == "checking", 30)
        before = query(app.dsn, "select pid from pg_stat_activity where application_name like 'coordinator control%%'")
        deaf.clear()
        wait_until(lambda: consumer.status().wake_ups == "listen", 30)
        after = query(app.dsn, "select pid from pg_stat_activity where application_name like 'coordinator control%%'")
        assert set(before).isdisjoint(after)


@pytest.mark.direct("a listener needs a session")
def test_listener__hears_nothing_whatever_is_tried__says_so_and_polls(app, monkeypatch, caplog):
    monkeypatch.setattr(listening, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(control, "listen_statement", lambda _channel: listen_statement("elsewhere"))
    with app.consumer(TOPIC, group=GROUP) as consumer:
        wait_until(lambda: consumer.status().wake_ups == "deaf", 30)
        assert "listener.deaf" in [record.msg for record in caplog.records]
        publish(app, 3)
        assert len([message for _ in range(3) for message in wait_until(lambda: consumer.poll(1, 5), 30)]) == 3
        # It is no reason to give up the session for ever.
        joined = query(app.dsn, "select pid from pg_stat_activity where application_name like 'coordinator control%%'")
        time.sleep(2.5)
        assert joined == query(
            app.dsn, "select pid from pg_stat_activity where application_name like 'coordinator control%%'"
        )


@pytest.mark.slow
@pytest.mark.parametrize("which", ["coordinator control", "coordinator work", "coordinator"])
def test_socket__half_open__is_noticed_within_fifteen_seconds_unhealthy_meanwhile_back_by_itself(dsn, which):
    """Case 14, with the times as they ship: bytes vanish in both directions, and nobody says goodbye."""
    with Proxy(dsn) as proxy, Coordinator(proxy.dsn, client_id="test") as app, Coordinator(dsn) as direct:
        direct.create_topic(TOPIC, 1)
        consumer = app.consumer(TOPIC, group=GROUP).start()
        reading = Reading(consumer)
        direct.publish(TOPIC, 0)
        wait_until(lambda: reading.values == [0], 30)
        wait_until(lambda: consumer.status().healthy, 30)
        before = [id(link) for link in proxy.links(which)]
        proxy.put(Fault(swallow_up=True, swallow_down=True), which)
        cut_s = time.monotonic()
        # What is open stays deaf; who connects anew gets through.
        proxy._rules.clear()
        direct.publish(TOPIC, 1)
        wait_until(lambda: not consumer.status().healthy, 15, "unhealthy")
        wait_until(lambda: not {id(link) for link in proxy.links(which)} & set(before), 30, "given up")
        noticed_s = time.monotonic() - cut_s
        print(f"{which}: noticed after {noticed_s:.1f} s")
        assert noticed_s < 15
        wait_until(lambda: 1 in reading.values, 30)
        wait_until(lambda: consumer.status().healthy, 30)
        reading.stop()


def test_status__without_a_database__says_since_when_and_is_well_again(dsn):
    with Proxy(dsn) as proxy, Coordinator(proxy.dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 1)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            wait_until(lambda: consumer.status().healthy, 30)
            assert consumer.status().problems == ()
            proxy.refuse()
            wait_until(lambda: len(consumer.status().problems) >= 2, 30)
            assert any("loop has no database" in problem for problem in consumer.status().problems)
            proxy.heal()
            wait_until(lambda: consumer.status().healthy, 30)


def test_reconnects__of_many_consumers__are_spread():
    """Capped backoff with jitter: what a thousand clients do in step is a second outage."""
    pauses = [[pause_s(failures) for _ in range(200)] for failures in (1, 4, 50)]
    assert max(pauses[0]) <= 0.1
    assert max(pauses[2]) <= 2.0
    assert all(max(some) > 1.5 * min(some) for some in pauses)
