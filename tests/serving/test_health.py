"""Health over real HTTP: red for each reason, which is said, and green again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest
from support.http import get
from support.proxy import Fault, Proxy, backend_count
from support.shell import GROUP, TOPIC, publish, query, short, wait_until

from coordinator import AsyncCoordinator, Coordinator
from coordinator.errors import ConfigError, CoordinatorError, NotFoundError
from coordinator.observe.health import Limits
from coordinator.protocol.observe import group_totals


@pytest.fixture(params=["threads", "asyncio"])
def run_app(request, free_port):
    """Run an application of either shell with a port; returns it with its runtime's engine reachable."""
    with contextlib.ExitStack() as stack:

        def start(dsn):
            kind = Coordinator if request.param == "threads" else AsyncCoordinator
            app = kind(dsn, client_id="run", settings=short(metrics_port=free_port))
            if request.param == "threads":
                app.subscribe(TOPIC, group=GROUP)(lambda message: None)
                work = app.run
            else:

                @app.subscribe(TOPIC, group=GROUP)
                async def handle(message):
                    await asyncio.sleep(0)

                def work(**options):
                    asyncio.run(app.run(**options))

            def run():
                with contextlib.suppress(CoordinatorError):
                    work(install_signal_handlers=False)

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            stack.callback(thread.join, 30)
            stack.callback(app.stop)
            return app

        yield start


def ready(port):
    try:
        return get(port, "/readyz")
    except OSError:
        return None


def codes(port):
    answer = ready(port)
    return None if answer is None else {reason["code"] for reason in answer.json["reasons"]}


def test_readyz__database_cut_off__is_red_with_the_reasons_and_green_again(app, dsn, pooler, run_app, free_port):
    # Behind a pooler nobody listens.
    reasons = {"database_away", *["listener_deaf"] * (pooler is None)}
    with Proxy(dsn) as proxy:
        run_app(proxy.dsn)
        wait_until(lambda: codes(free_port) == set(), 30, "green")
        proxy.refuse()
        proxy.reset()
        wait_until(lambda: "lease_lost" in (codes(free_port) or ()), 30, "the lease")
        wait_until(lambda: reasons <= (codes(free_port) or set()), 30, "all reasons")
        answer = ready(free_port)
        assert answer.status == 503
        assert answer.json["status"] == "red"
        assert all(reason["reason"] for reason in answer.json["reasons"])
        # It is alive: a restart would not bring the database back.
        assert get(free_port, "/livez").status == 200
        proxy.heal()
        wait_until(lambda: codes(free_port) == set(), 60, "green again")


def test_livez__loop_that_has_ended__is_red(app, dsn, run_app, free_port):
    running = run_app(dsn)
    wait_until(lambda: codes(free_port) == set(), 30, "green")
    runtime = running._running
    runtime.dead_loops = lambda: ["work"]
    answer = get(free_port, "/livez")
    assert (answer.status, answer.json["reasons"][0]["code"]) == (503, "loop_dead")
    assert "work" in answer.json["reasons"][0]["reason"]


# Its first statement asks for the version.
MAINTAINS = (
    "select 1 from pg_stat_activity where datname = current_database() "
    "and application_name like 'coordinator maintain%' and query not like '%protocol_version%' and query <> ''"
)


def test_serve__database_away__is_ready_no_more_and_lives(app, dsn, serving):
    with Proxy(dsn) as proxy:
        port = serving(proxy.dsn)
        wait_until(lambda: codes(port) == set(), 30, "green")
        # Not before it works: a service whose very first connection fails says so and ends.
        wait_until(lambda: query(dsn, MAINTAINS), 30, "maintenance")
        proxy.refuse()
        proxy.reset()
        wait_until(lambda: codes(port) == {"database_away"}, 60, "red")
        assert get(port, "/livez").status == 200
        assert get(port, "/").status == 503
        assert get(port, "/metrics").status == 200
        proxy.heal()
        wait_until(lambda: codes(port) == set(), 60, "green again")


def test_serve__server_that_does_not_answer__is_found_in_time(app, dsn, serving):
    with Proxy(dsn) as proxy:
        port = serving(proxy.dsn)
        wait_until(lambda: "partition=" in get(port, "/metrics").text, 30, "gauges")
        # Connections that stay and are silent, and connections that end.
        for frozen in (True, False):
            began_s = time.monotonic()
            if frozen:
                proxy.put(Fault(swallow_up=True, swallow_down=True))
            else:
                proxy.refuse()
            wait_until(lambda: codes(port) == {"database_away"}, 30, "red")
            # Five seconds after the database was asked in vain, and it is asked every two.
            assert time.monotonic() - began_s < 10
            proxy.heal()
            proxy.reset()
            wait_until(lambda: codes(port) == set(), 60, "green again")
            wait_until(lambda: backend_count(dsn, "coordinator gauges"), 30, "a connection")


def test_health__limits__name_what_was_found(app, dsn):
    publish(app, 5)
    query(dsn, "update coordinator.topic_1 set published_at = now() - interval '1 hour'")
    found = {finding.code: finding.reason for finding in app.health(Limits(max_lag=4, max_age_s=60, max_in_flight=0))}
    assert found.keys() == {"lag", "age", "no_members"}
    assert found["lag"] == f"group {GROUP}: 5 messages not settled, limit 4"
    assert {finding.code for finding in app.health(Limits(max_lag=5, max_dead_letters=0))} == {"no_members"}
    with app.consumer(TOPIC, group=GROUP) as consumer:
        while consumer.poll(5, 0.5):
            pass
        wait_until(lambda: app.health() == [], 30, "green")
        assert {finding.code for finding in app.health(Limits(max_in_flight=4))} == {"in_flight"}
    with pytest.raises(NotFoundError):
        app.health(group="nobody")


def test_faces__observing__say_the_same(app, dsn):
    publish(app, 5)

    async def observed():
        async with AsyncCoordinator(dsn, client_id="twin", settings=short()) as twin:
            with pytest.raises(NotFoundError):
                await twin.health(group="nobody")
            return (
                await twin.health(Limits(max_lag=4)),
                [(gauge.topic, gauge.partition, gauge.lag) for gauge in await twin.group_gauges()],
                {name for name in (await twin.gauges()).gauges if name[1]},
                await twin.execute(group_totals()),
            )

    assert asyncio.run(observed()) == (
        app.health(Limits(max_lag=4)),
        [(gauge.topic, gauge.partition, gauge.lag) for gauge in app.group_gauges()],
        {name for name in app.gauges().gauges if name[1]},
        app.execute(group_totals()),
    )


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_serve__on_asyncio__serves_beside_other_tasks_until_it_is_ended(app, dsn, free_port, how):
    async def main():
        async with AsyncCoordinator(dsn, client_id="server", settings=short()) as served:
            serving = asyncio.create_task(served.serve(port=free_port, install_signal_handlers=False))
            await asyncio.to_thread(wait_until, lambda: codes(free_port) == set(), 30, "green")
            assert not serving.done()
            if how == "stop":
                served.stop()
                await serving
            else:
                serving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await serving
            with pytest.raises(OSError, match="refused"):
                get(free_port, "/livez")

    asyncio.run(main())


def test_server__what_it_does_not_have__is_refused(app, serving):
    port = serving()
    assert get(port, "/nothing").status == 404
    assert get(port, "/metrics", method="POST").status == 501
    assert get(port, "/metrics", method="HEAD").body == b""
    assert get(port, "/%2e%2e/etc/passwd").status == 404
    assert get(port, "/static/../app.py").status == 404


def test_server__on_this_machine_alone__is_not_known_by_another_name(app, serving):
    port = serving()
    assert get(port, "/", headers={"Host": "evil.example"}).status == 403
    assert get(port, "/", headers={"Host": f"evil.example:{port}"}).status == 403
    assert get(port, "/livez", headers={"Host": f"localhost:{port}"}).status == 200
    assert get(port, "/livez", headers={"Host": "127.0.0.1"}).status == 200


def test_port__taken__is_told(app, serving):
    port = serving()
    with pytest.raises(ConfigError, match=str(port)):
        app.serve(port=port, install_signal_handlers=False)
