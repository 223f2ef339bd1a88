"""Dead letters: what is in them, that they and the offset agree, and what comes of replaying them."""

import concurrent.futures
import contextlib
import datetime as dt
import time

import psycopg
import pytest
from support.ledger import Recorder, dead, failing, parked, wait_settled
from support.processes import Process, Task
from support.shell import GROUP, TOPIC, committed, drain, query, wait_until

from coordinator import Reject
from coordinator.errors import LoopFailedError, NotFoundError

# A store of dead letters that refuses, and counts how often it was asked: a sequence is not rolled back.
REFUSING = """
create sequence asked;
create function refuse() returns trigger language plpgsql as $$
begin
    perform nextval('public.asked');
    raise exception 'the disk of the dead is full';
end
$$;
create trigger refuse before insert on coordinator.dead_letters for each row execute function refuse();
"""

SLOW = """
create function dawdle() returns trigger language plpgsql as $$ begin perform pg_sleep(1.2); return new; end $$;
create trigger dawdle before insert on coordinator.dead_letters for each row execute function dawdle();
"""


def rejecting(values, reason="no"):
    def act(message):
        if message.value in values:
            raise Reject(reason)

    return act


def asked(dsn):
    ((count, called),) = query(dsn, "select last_value, is_called from asked")
    return count if called else 0


def test_dead_letter__holds_what_was_published(shell, dsn):
    """I12."""
    published = shell.app.publish(
        TOPIC, {"a": [1, "ü"]}, key="k", headers={"x": "1", "n": {"m": 2}}, correlation_id="c-1"
    )
    shell.subscribe(Recorder(lambda _message: 1 // 0), retry=[0.01], max_attempts=3)
    with shell:
        wait_until(lambda: dead(dsn))
        wait_settled(dsn)
        (message,) = shell.app.peek(TOPIC, partition=published.partition)
    (letter,) = dead(dsn)
    assert letter["payload"] == '{"a":[1,"ü"]}'
    assert letter["headers"] == {"x": "1", "n": {"m": 2}, "correlation-id": "c-1"}
    assert letter["message_id"] == str(published.message_id)
    place = (letter["key"], letter["partition"], letter["offset"], letter["content_type"])
    assert place == ("k", published.partition, published.offset, None)
    assert (letter["reason"], letter["attempts"], letter["crashes"], letter["replays"]) == ("attempts", 3, 0, 0)
    assert letter["error"].startswith("ZeroDivisionError")
    assert dt.datetime.fromisoformat(letter["published_at"]) == message.published_at


def test_dead_letter__of_bytes__keeps_every_byte(shell, dsn):
    payload = bytes(range(256)) * 4
    shell.app.publish(TOPIC, payload)
    shell.subscribe(Recorder(lambda _message: 1 // 0), max_attempts=1)
    with shell:
        wait_settled(dsn)
    assert query(dsn, "select payload, content_type from coordinator.dead_letters") == [
        (payload, "application/octet-stream")
    ]


def test_dead_letter__written__is_told_once_and_the_hook_is_called(shell, dsn, caplog):
    letters = []

    def hook(letter):
        letters.append(letter)
        raise RuntimeError("a hook that fails harms nobody")

    shell.subscribe(Recorder(rejecting({0, 1})), on_dead_letter=hook)
    shell.app.publish_many(TOPIC, [0, 1, 2])
    with shell:
        wait_settled(dsn)
        wait_until(lambda: len(letters) == 2)
    assert {(letter["group"], letter["topic"], letter["reason"]) for letter in letters} == {(GROUP, TOPIC, "rejected")}
    assert sum(record.msg == "delivery.dead_lettered" for record in caplog.records) == 2


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_dead_letter__cannot_be_stored__nothing_advances_and_it_is_tried_with_a_cap(shell, dsn, caplog, ordering):
    """Case 23. Others go on, and do not make it be tried more often; once the store is mended, all is as if nothing had been."""
    query(dsn, REFUSING)
    book = Recorder(rejecting({0}))
    shell.subscribe(book, ordering=ordering)
    shell.app.publish(TOPIC, 0, key="bad", partition=0)
    with shell:
        wait_until(lambda: asked(dsn))
        started_s = time.monotonic()
        for value in range(1, 100):
            shell.app.publish(TOPIC, value, key=f"k{value}", partition=1 if ordering == "partition" else value % 2)
            time.sleep(0.02)
        wait_until(lambda: len(book.seen) == 100)
        passed_s = time.monotonic() - started_s
        assert asked(dsn) <= passed_s + 3
        assert committed(dsn)[0] == 0
        assert dead(dsn) == parked(dsn) == []
        wait_until(lambda: committed(dsn)[1] > 0)
        query(dsn, "drop trigger refuse on coordinator.dead_letters")
        wait_settled(dsn, 5)
    (letter,) = dead(dsn)
    assert (letter["offset"], letter["attempts"]) == (0, 1)
    # It was handled once: what failed is the storing.
    assert book.attempts(0) == [1]
    refused = [record for record in caplog.records if record.msg == "dead_letter.refused"]
    assert refused
    assert "the disk of the dead is full" in refused[0].error


def test_dead_letter__cannot_be_stored__acks_do_not_wait_for_it(shell, dsn):
    query(dsn, REFUSING)
    shell.subscribe(Recorder(rejecting({0})))
    shell.app.publish(TOPIC, 0, partition=0)
    with shell:
        wait_until(lambda: asked(dsn))
        for value in range(1, 6):
            shell.app.publish(TOPIC, value, partition=1)
            at_s = time.monotonic()
            wait_until(lambda value=value: committed(dsn)[1] == value)
            assert time.monotonic() - at_s < 0.6
        query(dsn, "drop trigger refuse on coordinator.dead_letters")
        wait_settled(dsn)


def test_dead_letter__refused_and_restarted__is_handled_again_and_stored_once(make_shell, dsn):
    query(dsn, REFUSING)
    books = []
    for name in ("first", "second"):
        shell = make_shell(name, commit_timeout_s=5.0)
        books.append(Recorder(rejecting({0})))
        shell.subscribe(books[-1])
        if name == "first":
            shell.app.publish(TOPIC, 0)
        with shell:
            wait_until(lambda: books[-1].seen)
            if name == "second":
                query(dsn, "drop trigger refuse on coordinator.dead_letters")
                wait_settled(dsn)
            else:
                wait_until(lambda: asked(dsn))
                stopping_s = time.monotonic()
        if name == "first":
            # What cannot be stored is not waited for; it is given back, and the next has it at once.
            assert time.monotonic() - stopping_s < 4.5
    assert [book.attempts(0) for book in books] == [[1], [1]]
    assert len(dead(dsn)) == 1


def test_dead_letter__process_killed_while_it_is_stored__one_outcome(shell, dsn, tmp_path):
    """Case 23: the process dies between two statements; dead letter and offset are both there, or neither."""
    query(dsn, SLOW)
    for value in range(2):
        shell.app.publish(TOPIC, value, partition=0)
    settings = {"lease_s": 1.0, "heartbeat_s": 0.2, "self_fence_margin_s": 0.2}
    task = Task(
        dsn,
        TOPIC,
        GROUP,
        mode="subscribe",
        shell=shell.kind,
        raise_on=[0],
        settings=settings,
        options={"max_attempts": 1},
    )
    with Process(task, tmp_path) as victim:
        wait_until(lambda: victim.events("failed"))
        time.sleep(0.4)
        victim.kill()
    query(dsn, "alter table coordinator.dead_letters disable trigger dawdle")
    book = Recorder(rejecting({0}))
    shell.subscribe(book)
    with shell:
        wait_settled(dsn)
    (letter,) = dead(dsn)
    assert letter["offset"] == 0
    assert (letter["reason"] == "attempts") == (book.attempts(0) == [])


def test_dead_letters__hundreds_at_once__are_written(make_shell, dsn):
    """In one exchange, which must end within its own time limit: else it would be sent again for ever."""
    shell = make_shell(visibility_timeout_s=60)
    shell.app.publish_many(TOPIC, list(range(4000)))
    with shell.app.consumer(TOPIC, group=GROUP) as consumer:
        # What may be held at once grows with the speed of the handlers.
        drain(consumer, 3000)
        found = []
        while batch := consumer.poll(1000, 0.5):
            found += batch
        for message in found:
            message.reject("x" * 5000)
        started_s = time.monotonic()
        consumer.commit()
        took_s = time.monotonic() - started_s
    print(f"{len(found)} dead letters in one commit: {took_s:.1f} s")
    assert len(found) >= 400
    assert took_s < 5
    assert len(dead(dsn)) == len(found)


def replay(dsn, offsets, partition=0, topic=TOPIC, group=GROUP):
    text = "select * from coordinator.replay(%s, %s, %s, %s::bigint[])"
    return dict(query(dsn, text, group, topic, partition, list(offsets)))


def make_dead(shell, dsn, count, **options):
    """Reject values 0 to count - 1 of partition 0, and stop."""
    for value in range(count):
        shell.app.publish(TOPIC, value, key=f"k{value}", headers={"n": value}, partition=0)
    shell.subscribe(Recorder(failing(set(range(count)))), max_attempts=1, **options)
    with shell:
        wait_until(lambda: len(dead(dsn)) == count)
        wait_settled(dsn)


def test_replay__handled_this_time__is_gone_from_everywhere(make_shell, dsn):
    make_dead(make_shell("first"), dsn, 3)
    second, book = make_shell("second"), Recorder()
    second.subscribe(book)
    with second:
        assert replay(dsn, [0, 1, 2, 77]) == {0: "replayed", 1: "replayed", 2: "replayed", 77: "gone"}
        wait_until(lambda: sorted(book.values()) == [0, 1, 2], 5)
        wait_settled(dsn)
    assert {seen.attempt for seen in book.seen} == {1}
    assert dead(dsn) == parked(dsn) == []


def test_replay__for_one_group__does_not_reach_another(make_shell, dsn):
    first = make_shell("first")
    other = Recorder()
    first.subscribe(other, group="other")
    make_dead(first, dsn, 2)
    second, book = make_shell("second"), Recorder()
    second.subscribe(book)
    second.subscribe(other, group="other")
    with second:
        replay(dsn, [0, 1])
        wait_until(lambda: sorted(book.values()) == [0, 1], 5)
        wait_settled(dsn)
        wait_settled(dsn, group="other")
    assert sorted(other.values()) == [0, 1]


def test_replay__fails_again__is_a_dead_letter_with_its_whole_history(make_shell, dsn):
    """Case 24, R10, R17."""
    make_dead(make_shell("first"), dsn, 1)
    second, book = make_shell("second"), Recorder(failing({0}))
    second.subscribe(book, retry=[0.05], max_attempts=2)
    with second:
        for replays in (1, 2):
            assert replay(dsn, [0]) == {0: "replayed"}
            wait_until(lambda replays=replays: dead(dsn) and dead(dsn)[0]["replays"] == replays, 5)
    (letter,) = dead(dsn)
    assert book.attempts(0) == [1, 2, 1, 2]
    assert [error["attempt"] for error in letter["errors"]] == [1, 1, 2, 1, 2]
    assert (letter["payload"], letter["key"], letter["headers"]) == ("0", "k0", {"n": 0})


def test_replay__twice_at_once__happens_once(make_shell, dsn):
    """Case 24. Mutant: replay selects the dead letter and deletes it later, without a lock: two rows for one message, or 23505."""
    make_dead(make_shell("first"), dsn, 200)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: replay(dsn, range(200)), range(4)))
    times = [sum(outcome[offset] == "replayed" for outcome in outcomes) for offset in range(200)]
    assert times == [1] * 200
    second, book = make_shell("second"), Recorder()
    second.subscribe(book, concurrency=4)
    with second:
        wait_settled(dsn)
    assert sorted(book.values()) == list(range(200))


def test_replay__killed_half_way__changes_nothing(make_shell, dsn):
    make_dead(make_shell("first"), dsn, 3)
    before = dead(dsn)
    connection = psycopg.connect(dsn)
    connection.execute("select * from coordinator.replay(%s, %s, 0, '{0,1,2}')", (GROUP, TOPIC))
    query(dsn, "select pg_terminate_backend(%s)", connection.info.backend_pid)
    connection.close()
    wait_until(lambda: dead(dsn) == before)
    assert parked(dsn) == []
    assert set(replay(dsn, [0, 1, 2]).values()) == {"replayed"}


def test_replay__group_or_topic_unknown__is_said(make_shell, dsn):
    make_dead(make_shell("first"), dsn, 1)
    for arguments in ({"group": "nobody"}, {"topic": "nothing"}, {"partition": 9}):
        with pytest.raises(psycopg.Error) as caught:
            replay(dsn, [0], **arguments)
        assert caught.value.sqlstate == "KG003"
    with pytest.raises(NotFoundError):
        make_shell().app.group_offsets("nobody")


def test_group__deleted_while_it_replays__no_other_is_harmed(make_shell, dsn):
    """Case 24: what the member holds is void; the other group gets its messages, until the process ends and says what was deleted."""
    make_dead(make_shell("first"), dsn, 3)
    second = make_shell("second")
    slow, other = Recorder(lambda _message: time.sleep(0.3)), Recorder()
    second.subscribe(slow)
    second.subscribe(other, group="other")
    with contextlib.suppress(NotFoundError, LoopFailedError), second:
        replay(dsn, [0, 1, 2])
        wait_until(lambda: slow.started)
        query(dsn, "delete from coordinator.groups where name = %s", GROUP)
        second.app.publish(TOPIC, 99, partition=0)
        wait_until(lambda: 99 in other.values(), 5)
        wait_settled(dsn, group="other")


def test_replay__of_a_key__does_not_stop_the_key(make_shell, dsn):
    """I10 sets replays apart: a replayed message is older than what has been handled since, and blocks nothing for long."""
    make_dead(make_shell("first"), dsn, 1)
    second, book = make_shell("second"), Recorder()
    second.subscribe(book)
    with second:
        for value in range(1, 6):
            second.app.publish(TOPIC, value, key="k0", partition=0)
        wait_until(lambda: len(book.seen) == 5)
        replay(dsn, [0])
        for value in range(6, 11):
            second.app.publish(TOPIC, value, key="k0", partition=0)
        wait_settled(dsn)
    assert sorted(book.values()) == list(range(11))
    later = [value for value in book.values() if value != 0]
    assert later == sorted(later)
