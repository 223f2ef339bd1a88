"""The server is away for longer than every budget of retries, and answers get lost: one outcome each (cases 15, 16)."""

import threading
import time

import pytest
from support.adapter import SHELLS
from support.processes import Process, Task
from support.proxy import Fault, Proxy
from support.shell import TOPIC, committed, owners, query, short, wait_until
from support.sizes import FULL

from coordinator import Coordinator
from coordinator.consumer import aio_work, work
from coordinator.db.schema import install
from coordinator.embedded import EmbeddedServer
from coordinator.errors import UnavailableError

OUTAGE_S = 180.0 if FULL else 6.0
SETTINGS = {"lease_s": 1.5, "heartbeat_s": 0.3, "self_fence_margin_s": 0.3, "membership_poll_s": 0.2}


@pytest.fixture
def own_server(request):
    major = request.config.getoption("--postgres")
    with EmbeddedServer.start(tcp=True, major=major) as server:
        install(server.dsn)
        yield server


@pytest.mark.slow
@pytest.mark.direct("the server is its own")
def test_outage__longer_than_every_budget__burns_no_attempt_and_every_loop_lives(own_server, tmp_path):
    """Case 16: plain and transactional handlers, in processes; some messages wait for a retry, some are being handled."""
    dsn = own_server.dsn
    query(dsn, "create table effects (value int, topic text, partition int, n bigint)")
    with Coordinator(dsn, client_id="test", settings=short()) as app:
        for topic in ("plain", "ledger"):
            app.create_topic(topic, 2)
            for number in range(20):
                app.publish(topic, number, key=str(number))
        options = {"retry": [0.2], "max_attempts": 3, "concurrency": 4}
        tasks = [
            Task(dsn, "plain", "plain", "p", "subscribe", 0.5, settings=SETTINGS, options=options),
            Task(dsn, "ledger", "ledger", "l", "ledger", 0.5, settings=SETTINGS, options=options),
        ]
        with Process(tasks[0], tmp_path) as plain, Process(tasks[1], tmp_path) as ledger:
            processes = {"plain": plain, "ledger": ledger}
            wait_until(lambda: all(len(one.events("start")) >= 3 for one in processes.values()), 60)
            own_server.shut_down("immediate")
            time.sleep(OUTAGE_S)
            assert all(process.running for process in processes.values())
            own_server.restart()
            for topic in processes:
                for number in range(20, 30):
                    app.publish(topic, number, key=str(number))
            for topic, process in processes.items():
                # By what is left, and not by the offsets: a sequence may jump over some when the server recovers.
                wait_until(lambda topic=topic: sum(one.lag for one in app.group_offsets(topic)) == 0, 60, topic)
                starts = process.events("start")
                assert {event["value"] for event in starts} == set(range(30))
                assert {event["attempt"] for event in starts} == {1}
            # Woken up and renewing: both loops of both are alive afterwards.
            for topic, process in processes.items():
                app.publish(topic, 100)
                wait_until(lambda process=process: process.events("start")[-1]["value"] == 100, 30)
            assert query(dsn, "select count(*) from coordinator.coordinators where lease_until > now()") == [(2,)]
        assert query(dsn, "select count(*), count(distinct value) from effects where value < 30") == [(30, 30)]
        for table in ("crashes", "dead_letters", "retries"):
            assert query(dsn, f"select count(*) from coordinator.{table}") == [(0,)]


# ---- answers that are lost

MOMENTS = ["before", "after"]


@pytest.fixture
def proxy(dsn):
    with Proxy(dsn) as made:
        yield made


@pytest.fixture(params=list(SHELLS))
def shell(request, proxy, dsn):
    with Coordinator(dsn, client_id="setup", settings=short()) as app:
        app.create_topic(TOPIC, 2)
    made = SHELLS[request.param](proxy.dsn, "test", visibility_timeout_s=30)
    yield made
    proxy.heal()
    made.close()


def cut_once(proxy, moment, name):
    """Cut the next COMMIT of that name, and no other."""
    cuts = proxy.cuts
    proxy.put(Fault(cut_commit=moment), name)

    def heal():
        wait_until(lambda: proxy.cuts > cuts, 60)
        proxy.heal()

    threading.Thread(target=heal, daemon=True).start()


def cut_exchange(monkeypatch, proxy, moment, chosen):
    """Cut the exchange that `chosen` picks at its COMMIT, once."""
    cuts = []
    for module in (work, aio_work):
        made = module.exchange_call

        def cutting(coordinator, exchange, made=made):
            if not cuts and chosen(exchange):
                cuts.append(exchange)
                cut_once(proxy, moment, "coordinator work")
            return made(coordinator, exchange)

        monkeypatch.setattr(module, "exchange_call", cutting)
    return cuts


@pytest.mark.parametrize("moment", MOMENTS)
def test_dead_letter__commit_cut__is_there_once_and_settled(shell, proxy, dsn, monkeypatch, moment):
    seen = []

    def handle(message):
        seen.append(message.value)
        if message.value == 1:
            message.reject("bad")

    cuts = cut_exchange(monkeypatch, proxy, moment, lambda exchange: any(e["k"] == "dead" for e in exchange.hard))
    shell.subscribe(handle)
    with Coordinator(dsn, client_id="direct", settings=short()) as app:
        for number in range(3):
            app.publish(TOPIC, number, partition=0)
    with shell:
        wait_until(lambda: cuts and committed(dsn).get(0) == 3, 30)
    assert proxy.cuts >= 1
    assert query(dsn, 'select "offset" from coordinator.dead_letters') == [(1,)]
    assert sorted(seen) == [0, 1, 2]


@pytest.mark.parametrize("moment", MOMENTS)
def test_release__commit_cut__everything_is_free_and_uncharged(shell, proxy, dsn, monkeypatch, moment):
    cuts = cut_exchange(monkeypatch, proxy, moment, lambda exchange: bool(exchange.releases))
    shell.subscribe(lambda _message: None)
    with shell:
        wait_until(lambda: set(owners(dsn).values()) == {"test"}, 30)
        shell.stop()
    assert cuts
    assert proxy.cuts >= 1
    wait_until(lambda: set(owners(dsn).values()) == {None}, 30)
    assert query(dsn, "select count(*) from coordinator.crashes") == [(0,)]
    assert query(dsn, "select count(*) from coordinator.coordinators where state <> 'dead'") == [(0,)]


@pytest.mark.parametrize("moment", MOMENTS)
def test_claim__commit_cut__is_owned_under_one_epoch_and_reads_everything(shell, proxy, dsn, monkeypatch, moment):
    """After the cut the table may say that this coordinator owns what it does not hold: it claims again, newly."""
    from coordinator.protocol import groups

    claim, cut = groups.claim, []

    def cutting(*arguments):
        if not cut:
            cut.append(arguments)
            cut_once(proxy, moment, "coordinator control")
        return claim(*arguments)

    monkeypatch.setattr(groups, "claim", cutting)
    seen = []
    shell.subscribe(lambda message: seen.append(message.value))
    with Coordinator(dsn, client_id="direct", settings=short()) as app:
        for number in range(10):
            app.publish(TOPIC, number, key=str(number))
    with shell:
        wait_until(lambda: proxy.cuts >= 1, 30)
        wait_until(lambda: sum(committed(dsn).values()) == 10, 30)
        epochs = query(dsn, "select distinct c.epoch from coordinator.claims c")
    assert sorted(seen) == list(range(10))
    assert max(epochs)[0] == (2 if moment == "after" else 1)


@pytest.mark.parametrize("moment", MOMENTS)
def test_publish__by_the_pool_behind_a_pooler__commit_cut__repeated_with_its_key__is_there_once(proxy, dsn, moment):
    with Coordinator(proxy.dsn, client_id="cut", settings=short(pooler="transaction")) as app:
        app.create_topic("t", dedup_window_s=60)
        app.publish("t", 0)
        proxy.put(Fault(cut_commit=moment), "coordinator pool")
        with pytest.raises(UnavailableError):
            app.publish("t", 1, dedup_key="k")
        proxy.heal()
        again = app.publish("t", 1, dedup_key="k")
        assert again.duplicate == (moment == "after")
    assert query(dsn, "select count(*) from coordinator.topic_1") == [(2,)]
