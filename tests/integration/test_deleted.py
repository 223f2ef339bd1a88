"""Groups and topics that are deleted under who reads them: that one ends and says so, whatever else the process reads goes on."""

import asyncio
import threading

import pytest
from support.aio import Running, coordinator, in_loop, until
from support.shell import GROUP, TOPIC, query, short, wait_until

from coordinator import Coordinator
from coordinator.errors import DeletedError, StaleEpochError

OTHER = "audit"


class Seen:
    """A handler that remembers what it was given."""

    def __init__(self):
        self.values = []

    def __call__(self, message):
        self.values.append(message.value)


def errors_of(caplog):
    return [record.event for record in caplog.records if record.levelname == "ERROR"]


def test_group__deleted_under_a_member__the_other_groups_of_its_process_go_on(shell, caplog):
    seen, others = Seen(), Seen()
    shell.subscribe(seen)
    shell.subscribe(others, group=OTHER)
    shell.app.publish(TOPIC, 1)
    with shell:
        wait_until(lambda: seen.values == others.values == [1])
        shell.app.delete_group(GROUP, force=True)
        wait_until(lambda: shell.status().problems, 30)
        shell.app.publish(TOPIC, 2)
        wait_until(lambda: others.values == [1, 2], 30)
        assert (shell.failure, seen.values) == (None, [1])
        (problem,) = shell.status().problems
        assert GROUP in problem
        assert not shell.status().healthy
        # A restart would make the group anew: that is for people to decide.
        assert [(found.code, found.live) for found in shell.findings()] == [("deleted", False)]
        assert errors_of(caplog) == ["group.deleted"]
        assert shell.stop()


def test_topic__deleted_under_a_group_that_reads_two__the_other_one_goes_on(shell, caplog):
    seen = Seen()
    shell.app.create_topic("other", 1)
    shell.subscribe(seen, TOPIC, "other", concurrency=2)
    shell.app.publish(TOPIC, 1)
    with shell:
        wait_until(lambda: seen.values == [1])
        shell.app.delete_topic(TOPIC, force=True)
        wait_until(lambda: shell.status().problems, 30)
        for number in range(2, 12):
            shell.app.publish("other", number)
        wait_until(lambda: set(seen.values) == set(range(1, 12)), 30)
        assert errors_of(caplog) == ["topic.deleted"]
        assert shell.stop()


def test_group__deleted_while_its_member_is_declared_dead__is_not_made_anew(shell, dsn):
    """Who thaws joins again. Mutant: by join_group, which makes what is not there, and everything is handled once more."""
    seen, others = Seen(), Seen()
    shell.subscribe(seen)
    shell.subscribe(others, group=OTHER)
    shell.app.publish(TOPIC, 1)
    with shell:
        wait_until(lambda: seen.values == others.values == [1])
        (member,) = {row.member_id for row in shell.app.group_members(GROUP)}
        query(
            dsn,
            "do $$ begin perform coordinator.evict('" + str(member) + "'); "
            f"perform coordinator.delete_group('{GROUP}', true); end $$",
        )
        # It has joined again, under another id.
        wait_until(lambda: {row.member_id for row in shell.app.group_members(OTHER)} - {member}, 30)
        shell.app.publish(TOPIC, 2)
        wait_until(lambda: 2 in others.values, 30)
        assert shell.status().problems
        assert query(dsn, "select g.name from coordinator.groups g where g.name = %s", GROUP) == []
        assert seen.values == [1]
        assert shell.stop()


def test_message__of_a_deleted_group__its_ack_says_so(shell, dsn):
    began, gate, told = threading.Event(), threading.Event(), []

    def handle(message):
        began.set()
        assert gate.wait(30)
        try:
            message.ack(wait=True)
        except StaleEpochError as error:
            told.append(str(error))
            raise

    shell.subscribe(handle)
    shell.subscribe(Seen(), group=OTHER)
    shell.app.publish(TOPIC, 1)
    with shell:
        assert began.wait(30)
        shell.app.delete_group(GROUP, force=True)
        wait_until(lambda: shell.status().problems, 30)
        gate.set()
        wait_until(lambda: told, 30)
        assert "deleted" in told[0]
        assert shell.stop()


def test_transactional_handler__its_group_is_deleted_meanwhile__is_rolled_back(shell, dsn):
    began, gate, ended = threading.Event(), threading.Event(), threading.Event()
    query(dsn, "create table effects (value int)")

    def book(message, connection):
        connection.execute("insert into effects values (1)")
        began.set()
        assert gate.wait(30)
        ended.set()

    others = Seen()
    shell.subscribe(book, transactional=True)
    shell.subscribe(others, group=OTHER)
    shell.app.publish(TOPIC, 1)
    with shell:
        assert began.wait(30)
        shell.app.delete_group(GROUP, force=True)
        wait_until(lambda: shell.status().problems, 30)
        gate.set()
        assert ended.wait(30)
        shell.app.publish(TOPIC, 2)
        wait_until(lambda: others.values == [1, 2], 30)
        assert shell.stop()
    assert query(dsn, "select count(*) from effects") == [(0,)]
    assert query(dsn, "select count(*) from coordinator.acks") == [(0,)]


def test_topic__made_anew_under_its_name__is_not_read_for_the_deleted_one(shell):
    seen = Seen()
    shell.app.create_topic("other", 1)
    shell.subscribe(seen, TOPIC, "other")
    shell.app.publish(TOPIC, 1)
    with shell:
        wait_until(lambda: seen.values == [1])
        shell.app.delete_topic(TOPIC, force=True)
        shell.app.create_topic(TOPIC, 2)
        shell.app.publish(TOPIC, 2)
        wait_until(lambda: shell.status().problems, 30)
        shell.app.publish("other", 3)
        wait_until(lambda: 3 in seen.values, 30)
        assert 2 not in seen.values
        assert shell.stop()


WAYS = {
    "iterate": lambda consumer: next(iter(consumer)),
    "batches": lambda consumer: next(consumer.batches()),
    "poll": lambda consumer: consumer.poll(1, 30),
    "at_end": lambda consumer: consumer.at_end(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_consumer__its_group_is_deleted__raises(dsn, way):
    with Coordinator(dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 1)
        app.publish(TOPIC, 1)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            assert [message.value for message in consumer.poll(1, 30)] == [1]
            app.delete_group(GROUP, force=True)
            wait_until(lambda: consumer.status().problems, 30)
            with pytest.raises(DeletedError, match=f"group '{GROUP}'") as raised:
                way(consumer)
            assert raised.value.hint


def test_consumer__waits_while_its_group_is_deleted__raises(dsn):
    with Coordinator(dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 1)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            wait_until(consumer.at_end, 30)
            deleting = threading.Timer(0.5, app.delete_group, (GROUP,), {"force": True})
            deleting.start()
            with pytest.raises(DeletedError):
                next(iter(consumer))
            deleting.join()


@in_loop
async def test_async_consumer__its_group_is_deleted__raises(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            taking = asyncio.create_task(anext(consumer))
            await until(lambda: consumer.status().partitions == 1, 30)
            await app.delete_group(GROUP, force=True)
            with pytest.raises(DeletedError, match=f"group '{GROUP}'"):
                await asyncio.wait_for(taking, 30)
            with pytest.raises(DeletedError):
                await consumer.poll(1, 30)
            with pytest.raises(DeletedError):
                await consumer.at_end()


def test_run__everything_it_reads_was_deleted__ends_by_saying_so(dsn):
    with Coordinator(dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 1)
        seen = Seen()
        app.subscribe(TOPIC, group=GROUP)(seen)
        app.publish(TOPIC, 1)
        deleting = threading.Thread(
            target=lambda: (wait_until(lambda: seen.values, 30), app.delete_group(GROUP, force=True))
        )
        deleting.start()
        with pytest.raises(DeletedError, match=GROUP):
            app.run(install_signal_handlers=False)
        deleting.join()


@in_loop
async def test_run__on_asyncio__everything_it_reads_was_deleted__ends_by_saying_so(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        seen = []

        @app.subscribe(TOPIC, group=GROUP)
        async def handle(message):
            seen.append(message.value)

        async with Running(app) as running:
            await app.publish(TOPIC, 1)
            await until(lambda: seen, 30)
            await app.delete_topic(TOPIC, force=True)
            with pytest.raises(DeletedError, match=TOPIC):
                await asyncio.wait_for(running.task, 30)
