"""What a coordinator tells about itself, and what it does not start."""

import threading
import time

from support.shell import wait_until as until

from coordinator import Coordinator, Outgoing, Settings


def test_status__handler_that_does_not_return__is_named_and_other_keys_go_on(make_shell, dsn, caplog):
    stuck, seen = threading.Event(), []
    shell = make_shell(visibility_timeout_s=0.3)

    def bill(message):
        if message.value == "stuck":
            stuck.wait(60)
        seen.append(message.value)

    shell.subscribe(bill, "orders", group="billing", concurrency=2)
    shell.app.publish("orders", "stuck", key="a")
    shell.app.publish_many("orders", [Outgoing(number, key=f"k{number}") for number in range(20)])
    try:
        with shell:
            until(lambda: len(seen) == 20)
            until(lambda: shell.status().running and shell.status().running[0].slow)
            first = shell.status().running[0]
            assert (first.group, first.topic, first.key, first.attempt) == ("billing", "orders", "a", 1)
            assert first.running_s > 0.3
            told = until(lambda: [record for record in caplog.records if record.msg == "handler.slow"])
            assert told[0].offset == first.offset
            stuck.set()
    finally:
        stuck.set()


def test_poll__payloads_in_flight_at_the_bound__waits_for_an_ack(dsn):
    with Coordinator(dsn, settings=Settings(max_in_flight_bytes=2_500)) as app:
        app.create_topic("frames", 1)
        app.publish_many("frames", [bytes(1_000) for _ in range(6)])
        with app.consumer("frames", group="g", ordering="none") as consumer:
            batch = consumer.poll(10, 5)
            # The third crosses the bound, and is the last.
            assert len(batch) == 3
            assert consumer.status().in_flight_bytes == 3_000
            assert consumer.poll(10, 0.3) == []
            for message in batch[:2]:
                message.ack()
            assert len(consumer.poll(1, 5)) == 1


def test_poll__machine_too_busy__hands_nothing_over_until_it_is_not(dsn, monkeypatch):
    share = [99.0]
    monkeypatch.setattr("psutil.cpu_percent", lambda _interval: share[0])
    with Coordinator(dsn, settings=Settings(pause_above_cpu=90)) as app:
        app.create_topic("orders", 1)
        with app.consumer("orders", group="g") as consumer:
            until(lambda: consumer.status().held_back, 5)
            app.publish("orders", 1)
            assert consumer.poll(1, 0.5) == []
            share[0] = 5.0
            began_s = time.monotonic()
            assert len(consumer.poll(1, 5)) == 1
            assert time.monotonic() - began_s < 4
