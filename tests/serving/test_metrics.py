"""Metrics over real HTTP, against what the tables say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import yaml
from support.http import get, samples
from support.shell import GROUP, TOPIC, publish, query, short, wait_until

from coordinator import AsyncCoordinator, Coordinator
from coordinator.observe import metrics
from coordinator.observe.grafana import dashboard_of
from coordinator.observe.rules import RULES, rules_text
from coordinator.serving.gauges import DatabaseGauges, opener

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bcoordinator_[a-z_]+")


def lag(partition: int) -> str:
    return f'coordinator_group_lag{{group="{GROUP}",partition="{partition}",topic="{TOPIC}"}}'


def test_scrape__messages_of_a_group__lag_and_ages_are_those_of_the_tables(app, dsn, serving):
    publish(app, 3, partition=0)
    publish(app, 2, partition=1)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        for _ in range(5):
            (message,) = consumer.poll(1, 30)
            if message.partition == 0 and message.offset < 2:
                message.ack()
        consumer.commit()
    port = serving()

    def scraped() -> dict[str, float]:
        return samples(get(port, "/metrics").text)

    found = wait_until(lambda: scraped() if lag(0) in scraped() else None, 30, "the gauges of the database")
    assert (found[lag(0)], found[lag(1)]) == (1, 2)
    oldest = found[f'coordinator_group_oldest_unacked_age_seconds{{group="{GROUP}",topic="{TOPIC}"}}']
    (age,) = query(
        dsn, "select extract(epoch from now() - min(m.published_at)) from coordinator.topic_1 m where m.partition = 1"
    )[0]
    assert 0 < oldest <= age
    assert found[f'coordinator_topic_log_end_offset{{partition="0",topic="{TOPIC}"}}'] == 3
    assert found[f'coordinator_group_unowned_partitions{{group="{GROUP}",topic="{TOPIC}"}}'] == 2
    assert found["coordinator_database_gauges_exporter"] == 1
    assert found[f'coordinator_topic_bytes{{topic="{TOPIC}"}}'] > 0
    assert found['coordinator_table_dead_tuples{table="progress"}'] >= 0


def test_scrape__all_names_and_labels__are_those_of_the_list(app, serving):
    publish(app, 1)
    port = serving()
    known = {metric.name: metric for metric in metrics.METRICS}
    wait_until(lambda: "coordinator_group_lag" in get(port, "/metrics").text, 30)
    answer = get(port, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    answer = get(port, "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "process_resident_memory_bytes" in answer.text
    for sample in samples(answer.text):
        name, _, labels = sample.partition("{")
        if name.startswith("coordinator_"):
            metric = known.get(name) or known[re.sub(r"_(bucket|sum|count|created)$", "", name)]
            assert set(re.findall(r'([a-z]+)="', labels)) - {"le"} == set(metric.labels), sample
    as_json = get(port, "/metrics.json").json["metrics"]
    assert as_json["coordinator_group_lag"]["samples"][0]["labels"].keys() == {"group", "topic", "partition"}


def test_gauges_of_the_database__two_processes__one_exports_and_the_other_takes_over(app, dsn, serving):
    ports = [serving(), serving()]

    def exporters() -> list[int]:
        return [port for port in ports if samples(get(port, "/metrics").text)["coordinator_database_gauges_exporter"]]

    wait_until(lambda: len(exporters()) == 1, 30, "one exporter")
    assert sum("coordinator_group_lag" in get(port, "/metrics").text for port in ports) == 1
    # Who has the turn stays away: another may have it when its time is over.
    query(dsn, "update coordinator.exporters set exporter = gen_random_uuid(), held_until = now() - interval '1 s'")
    wait_until(lambda: len(exporters()) == 1, 60, "one exporter again")


def test_run__as_a_role_that_may_only_consume__is_ready_and_leaves_the_gauges_to_others(app, dsn, free_port):
    role = f"consumer_{uuid4().hex[:8]}"
    query(dsn, f"create role {role} login password 'x'")
    try:
        for (statement,) in query(dsn, "select coordinator.grant_statements('consumer', %s)", role):
            query(dsn, statement)
        mine = psycopg.conninfo.make_conninfo(dsn, user=role, password="x")
        with Coordinator(mine, client_id="run", settings=short(metrics_port=free_port)) as consuming:
            consuming.subscribe(TOPIC, group=GROUP)(lambda message: None)
            gauges = DatabaseGauges(opener(mine, 5.0, "test", prepare=True), consuming.schema)
            gauges._stopping.wait = lambda limit_s: waited.append(limit_s) or gauges._stopping.set()
            waited: list[float] = []
            gauges._run()
            assert (gauges.failure, gauges.away_s(), waited) == (None, 0.0, [300.0])
            thread = threading.Thread(target=consuming.run, kwargs={"install_signal_handlers": False})
            thread.start()
            try:
                wait_until(lambda: status_of(free_port) == 200, 30, "readiness")
                assert samples(get(free_port, "/metrics").text)["coordinator_database_gauges_exporter"] == 0
            finally:
                consuming.stop()
                thread.join(30)
    finally:
        query(dsn, f"drop owned by {role}")
        query(dsn, f"drop role {role}")


def status_of(port: int) -> int | None:
    try:
        return get(port, "/readyz").status
    except OSError:
        return None


def test_turn__asked_for_by_two_transactions_at_once__is_given_to_one(dsn):
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        text = "select coordinator.take_export_turn(%s, 30)"
        for connection in (first, second):
            # Who waits for the other instead has lost.
            connection.execute("set lock_timeout = '5s'")
            connection.commit()
        one, two = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
        assert first.execute(text, (one,)).fetchone() == (True,)
        assert second.execute(text, (two,)).fetchone() == (False,)
        first.commit()
        second.commit()
        assert second.execute(text, (two,)).fetchone() == (False,)
        second.commit()
        assert first.execute(text, (one,)).fetchone() == (True,)
        first.execute("select coordinator.end_export_turn(%s)", (one,))
        first.commit()
        assert second.execute(text, (two,)).fetchone() == (True,)


def test_group_gauges__message_settled_above_a_hole_and_one_parked__ages_are_of_the_right_ones(app, dsn):
    publish(app, 4, partition=0)
    with app.consumer(TOPIC, group=GROUP, ordering="none") as consumer:
        taken = []
        while len(taken) < 4:
            taken += consumer.poll(4, 30)
        for message in taken[:1]:
            message.nack(delay_s=3600)
        taken[1].ack()
        taken[2].ack()
        consumer.commit()
    ages = [("1 hour", 0), ("2 hours", 1), ("3 hours", 2), ("10 minutes", 3)]
    for age, offset in ages:
        query(
            dsn, f"update coordinator.topic_1 set published_at = now() - interval '{age}' where \"offset\" = %s", offset
        )
    (gauge,) = [found for found in app.group_gauges() if found.partition == 0]
    assert (gauge.lag, gauge.parked) == (2, 1)
    assert 599 < gauge.lag_s < 700
    assert 3599 < gauge.oldest_unacked_s < 3700


def test_group_gauges__offset_of_an_open_publisher__has_no_age_and_neither_has_what_is_settled_above(app, dsn):
    with psycopg.connect(dsn) as publisher:
        app.publish(TOPIC, 1, partition=0, connection=publisher)
        app.publish(TOPIC, 2, partition=0)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            (message,) = consumer.poll(1, 30)
            message.ack()
            consumer.commit()
            (gauge,) = [found for found in app.group_gauges() if found.partition == 0]
            publisher.rollback()
    assert (message.offset, gauge.lag, gauge.lag_s) == (1, 1, 0)


def test_lag__counts_no_messages(app, dsn):
    publish(app, 50)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_stat_force_next_flush()")
        connection.execute("select coordinator.group_gauges()").fetchall()
        connection.execute("select pg_stat_force_next_flush()")
        (scanned,) = connection.execute(
            "select coalesce(sum(s.seq_tup_read), 0) from pg_stat_all_tables s where s.relname ~ '^topic_1_s'"
        ).fetchone()
    assert scanned == 0


@pytest.mark.parametrize("shell", ["threads", "asyncio"])
def test_run__with_a_metrics_port__serves_its_counters_and_health(dsn, shell, free_port):
    app = (Coordinator if shell == "threads" else AsyncCoordinator)(
        dsn, client_id="run", settings=short(metrics_port=free_port)
    )
    with Coordinator(dsn) as admin:
        admin.create_topic(TOPIC, 1)
        if shell == "threads":
            app.subscribe(TOPIC, group=GROUP)(lambda message: None)
            thread = threading.Thread(target=app.run, kwargs={"install_signal_handlers": False})
        else:
            import asyncio

            @app.subscribe(TOPIC, group=GROUP)
            async def handle(message):
                await asyncio.sleep(0)

            async def run():
                await app.run(install_signal_handlers=False)
                await app.close()

            thread = threading.Thread(target=asyncio.run, args=(run(),))
        thread.start()
        try:
            name = f'coordinator_deliveries_total{{group="{GROUP}",outcome="acked",topic="{TOPIC}"}}'

            def acked() -> float:
                try:
                    return samples(get(free_port, "/metrics").text).get(name, 0)
                except OSError:
                    return -1

            wait_until(lambda: acked() >= 0, 30, "an answer")
            before = acked()
            publish(admin, 5)
            wait_until(lambda: acked() == before + 5, 30, "five acks")
            wait_until(lambda: get(free_port, "/readyz").status == 200, 30, "readiness")
        finally:
            app.stop()
            thread.join(30)
            if shell == "threads":
                app.close()
    with pytest.raises(OSError, match="refused"):
        get(free_port, "/livez")


def test_rules__as_yaml__name_metrics_that_exist_and_runbooks_that_are_written():
    known = names_of_samples()
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line[3:].strip().lower()).replace(" ", "-")
        for line in (ROOT / "docs" / "runbooks.md").read_text("utf-8").splitlines()
        if line.startswith("## ")
    }
    (group,) = yaml.safe_load(rules_text("https://example.org/runbooks"))["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [rule.name for rule in RULES]
    for rule in group["rules"]:
        named = set(NAME.findall(rule["expr"]))
        assert named, rule["alert"]
        assert named <= known, rule["alert"]
        assert rule["expr"].count("(") == rule["expr"].count(")"), rule["alert"]
        address, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert address == "https://example.org/runbooks"
        assert anchor in headings, rule["alert"]


def test_labels_of_rules_and_panels__are_those_of_their_metrics():
    labels = {metric.name: {*metric.labels, "instance"} for metric in metrics.METRICS}
    expressions = [rule.expression for rule in RULES]
    expressions += [target["expr"] for panel in dashboard_of()["panels"] for target in panel["targets"]]
    for expression in expressions:
        mine = set().union(*(labels[base(name)] for name in NAME.findall(expression)))
        for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert set(grouped.replace(" ", "").split(",")) <= mine | {"le"}, expression
        for matched in re.findall(r"\{([^}]*)\}", expression):
            assert set(re.findall(r"([a-z]+)=", matched)) <= mine, expression


def test_dashboard_of_grafana__panels__name_metrics_that_exist():
    known = names_of_samples()
    found = json.loads(json.dumps(dashboard_of()))
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    for panel in found["panels"]:
        for target in panel["targets"]:
            assert set(NAME.findall(target["expr"])) <= known, panel["title"]


def test_page_of_metrics__table__is_that_of_the_list():
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(coordinator_[a-z_]+)` \| (\w+) \| ([^|]*) \| (.*) \|$", page, re.MULTILINE)
    wanted = [
        (metric.name, metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.text)
        for metric in metrics.METRICS
    ]
    assert rows == wanted


def test_import__of_the_package__leaves_prometheus_and_http_out():
    code = "import sys, coordinator; print([m for m in ('prometheus_client', 'http.server', 'coordinator.serving') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout.strip() == "[]"


def base(name: str) -> str:
    found = re.sub(r"_(bucket|sum|count)$", "", name)
    return found if found in {metric.name for metric in metrics.METRICS} else name


def names_of_samples() -> set[str]:
    names = set()
    for metric in metrics.METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + suffix for suffix in suffixes}
    return names
