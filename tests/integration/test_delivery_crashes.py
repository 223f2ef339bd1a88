"""Processes that die or are stopped with messages in hand: what is charged, what becomes a dead letter, who has the rest."""

import signal
import time

import pytest
from support.ledger import Recorder, dead, parked, wait_settled
from support.processes import Process, Task
from support.proxy import Proxy
from support.shell import GROUP, TOPIC, committed, drain, owners, query, wait_until

from coordinator import Coordinator

SETTINGS = {"lease_s": 0.8, "heartbeat_s": 0.15, "self_fence_margin_s": 0.2, "membership_poll_s": 0.1}

# A lease that nobody waits for: who has the messages sooner was given them.
LONG = SETTINGS | {"lease_s": 20.0, "heartbeat_s": 1.0, "drain_timeout_s": 3.0}

# Of the process that dies or is stopped there is one of each shell; who comes after it need not be.
one_shell = pytest.mark.parametrize("make_shell", ["threads"], indirect=True)


@pytest.fixture
def app(dsn):
    """For tests of processes alone, whichever shell is there beside them."""
    with Coordinator(dsn) as made:
        made.create_topic(TOPIC, 2)
        yield made


def killers(dsn, folder, values, until, limit_s=60.0, shell="threads", **options):
    """Start a process that kills itself on these values, again and again as an init system does, until the condition holds."""
    processes = []
    deadline_s = time.monotonic() + limit_s
    task = Task(
        dsn, TOPIC, GROUP, mode="subscribe", shell=shell, kill_on=list(values), settings=SETTINGS, options=options
    )
    while True:
        with Process(task, folder, f"p{len(processes)}") as process:
            processes.append(process)
            wait_until(lambda process=process: not process.running or until(), limit_s)
            if until():
                process.signal(signal.SIGTERM)
                process.wait(10)
                return processes
        assert time.monotonic() < deadline_s


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["threads", "asyncio"])
def test_poison__kills_its_process__is_dead_after_its_budget_and_nobody_with_it(app, dsn, tmp_path, shell):
    """Case 21, I13: SIGKILL from inside the handler, with neighbours in the window and parked.

    Mutant: whoever has used up its budget is dead, alone or not, and nobody is made to run alone: neighbours become dead letters.
    """
    for value in range(60):
        app.publish(TOPIC, value, key=f"k{value % 7}", partition=value % 2)
    processes = killers(
        dsn,
        tmp_path,
        [10],
        lambda: sum(committed(dsn).values()) == 60 and dead(dsn) and not parked(dsn),
        shell=shell,
    )
    (letter,) = dead(dsn)
    assert (letter["payload"], letter["reason"], letter["crashes"]) == ("10", "crash", 3)
    starts = [event for process in processes for event in process.events("start") if event["value"] == 10]
    # The budget bounds its starts; what is told never goes down (I11).
    assert len(starts) <= 3
    attempts = [event["attempt"] for event in starts]
    assert attempts == sorted(attempts)
    handled = {event["value"] for process in processes for event in process.events("ack")}
    assert handled == set(range(60)) - {10}


@pytest.mark.slow
def test_poison__three_of_them__are_all_found(app, dsn, tmp_path):
    for value in range(40):
        app.publish(TOPIC, value, partition=value % 2)
    bad = [4, 5, 17]
    killers(
        dsn,
        tmp_path,
        bad,
        lambda: sum(committed(dsn).values()) == 40 and len(dead(dsn)) == 3 and not parked(dsn),
        max_crashes=2,
        retry=[0.1],
    )
    assert sorted((int(letter["payload"]), letter["reason"]) for letter in dead(dsn)) == [(v, "crash") for v in bad]


def test_crash__prefetched_and_never_started__is_attempt_bounded_and_never_dead(make_shell, dsn, tmp_path):
    """Case 11: a window full of messages, one being handled; SIGKILL again and again. No innocent dies of it (I13)."""
    shell = make_shell()
    for value in range(31):
        shell.app.publish(TOPIC, value, partition=0)
    task = Task(
        dsn,
        TOPIC,
        GROUP,
        mode="subscribe",
        shell=shell.kind,
        freeze_after=0,
        settings=SETTINGS,
        options={"retry": [0.1]},
    )
    ran = set()
    for number in range(4):
        with Process(task, tmp_path, f"p{number}") as process:
            wait_until(lambda process=process: process.events("frozen"))
            process.kill()
            ran |= {event["value"] for event in process.events("start")}
    book = Recorder()
    shell.subscribe(book, retry=[0.1])
    with shell:
        wait_settled(dsn, 60)
    gone = {int(letter["payload"]) for letter in dead(dsn)}
    assert sorted([*book.values(), *gone]) == list(range(31))
    # Who ran alone when its process died for the last time, may be; who never ran, may not.
    assert gone <= ran
    assert len(gone) <= 2


def test_slow_worker__window_of_two_hundred__starts_each_once(make_shell, dsn):
    """Case 11: what waits in the window has no deadline; it is not delivered again for having waited."""
    shell = make_shell(visibility_timeout_s=0.5)
    book = Recorder(lambda _message: time.sleep(0.01))
    shell.subscribe(book)
    for value in range(200):
        shell.app.publish(TOPIC, value, partition=0)
    with shell:
        wait_settled(dsn, 20)
    assert len(book.seen) == 200
    assert {seen.attempt for seen in book.seen} == {1}


def test_crash__then_alive_after_all__withdraws_the_charge(make_shell, dsn, tmp_path):
    """R6: declared dead while frozen, thawed: nothing had crashed."""
    shell = make_shell()
    for value in range(8):
        shell.app.publish(TOPIC, value, partition=value % 2)
    task = Task(dsn, TOPIC, GROUP, mode="subscribe", shell=shell.kind, work_s=1.0, settings=SETTINGS)
    book = Recorder(lambda _message: time.sleep(0.05))
    shell.subscribe(book)
    with Process(task, tmp_path) as zombie:
        wait_until(lambda: zombie.events("start"), 30)
        zombie.freeze()
        with shell:
            wait_until(lambda: query(dsn, "select 1 from coordinator.crashes"), 30)
            zombie.thaw()
            wait_until(lambda: not query(dsn, "select 1 from coordinator.crashes where coordinator is not null"), 30)
            wait_settled(dsn)
        zombie.kill()
    assert dead(dsn) == []


@pytest.fixture(params=["threads", "asyncio"])
def first(request, dsn, tmp_path):
    """Start a process that runs handlers on a shell; killed at the end."""
    started = []

    def start(**task):
        task.setdefault("settings", LONG)
        process = Process(
            Task(task.pop("at", dsn), TOPIC, GROUP, mode="subscribe", shell=request.param, **task), tmp_path
        )
        started.append(process.__enter__())
        return process

    yield start
    for process in started:
        process.__exit__(None, None, None)


def waiting_heir(shell, dsn):
    """A second member that is there already, with half of the partitions."""
    book = Recorder()
    shell.subscribe(book)
    shell.start()
    wait_until(lambda: len(set(owners(dsn).values()) - {None}) == 2, 30)
    return book


def handed_over(book, count):
    """The heir has it now: a second on a quiet machine, and in any case without waiting for a lease."""
    ended_s = time.monotonic()
    wait_until(lambda: len(book.seen) == count, 10)
    print(f"taken over within {max(seen.started_s for seen in book.seen) - ended_s:.2f} s")


@one_shell
def test_sigterm__in_a_handler_that_ignores_it__next_has_it_within_a_second_uncharged(make_shell, dsn, first):
    """Case 27: the drain is over, the handler still runs; its message is given back at once."""
    shell = make_shell(membership_poll_s=0.1)
    process = first(freeze_after=0, settings=LONG | {"drain_timeout_s": 0.3})
    wait_until(lambda: set(owners(dsn).values()) == {"process"}, 30)
    book = waiting_heir(shell, dsn)
    taken = next(partition for partition, owner in owners(dsn).items() if owner == "process")
    for value in range(5):
        shell.app.publish(TOPIC, value, partition=taken)
    wait_until(lambda: process.events("frozen"))
    process.signal(signal.SIGTERM)
    assert process.wait(15) == 1
    handed_over(book, 5)
    assert {seen.attempt for seen in book.seen} == {1}


@one_shell
def test_sigterm__while_idle__next_member_has_new_messages_within_a_second(make_shell, dsn, first):
    shell = make_shell(membership_poll_s=0.1)
    process = first()
    wait_until(lambda: set(owners(dsn).values()) == {"process"}, 30)
    book = waiting_heir(shell, dsn)
    process.signal(signal.SIGTERM)
    assert process.wait(15) == 0
    for value in range(10):
        shell.app.publish(TOPIC, value, partition=value % 2)
    handed_over(book, 10)


@one_shell
@pytest.mark.parametrize("wait_s", [0.0, 0.05, 0.2])
def test_sigterm__while_fetching_under_load__everything_is_handled_once(make_shell, dsn, first, wait_s):
    """Case 27: finished work is acked, unfinished is given back; nothing confirmed comes again, nothing is charged."""
    shell = make_shell()
    shell.app.publish_many(TOPIC, list(range(600)))
    process = first(work_s=0.001)
    wait_until(lambda: process.events("start"), 30)
    time.sleep(wait_s)
    process.signal(signal.SIGTERM)
    assert process.wait(15) == 0
    before = {event["value"] for event in process.events("ack")}
    assert sum(committed(dsn).values()) == len(before)
    with shell.app.consumer(TOPIC, group=GROUP) as consumer:
        rest = drain(consumer, 600 - len(before))
    assert before.isdisjoint(message.value for message in rest)
    assert len(before) + len(rest) == 600
    assert {message.attempt for message in rest} == {1} or not rest


@one_shell
def test_sigterm__while_the_commit_is_slow__it_is_waited_for(make_shell, dsn, first):
    """Case 27, in a commit: the exchange with the last acks takes its time; the process ends after it, and nothing comes again."""
    query(
        dsn,
        "create function dawdle() returns trigger language plpgsql as $$ begin perform pg_sleep(0.7); return new; end $$",
    )
    shell = make_shell()
    for value in range(3):
        shell.app.publish(TOPIC, value, partition=0)
    process = first(work_s=0.2)
    wait_until(lambda: process.events("ack"), 30)
    query(dsn, "create trigger dawdle before insert on coordinator.progress for each row execute function dawdle()")
    process.signal(signal.SIGTERM)
    assert process.wait(20) == 0
    query(dsn, "drop trigger dawdle on coordinator.progress")
    assert committed(dsn)[0] == len(process.events("ack"))
    assert set(owners(dsn).values()) == {None}


@one_shell
def test_sigterm__database_down__ends_in_time(make_shell, dsn, first):
    """Case 27: nobody to tell; the lease gives the partitions to the next."""
    shell = make_shell()
    with Proxy(dsn) as proxy:
        for value in range(4):
            shell.app.publish(TOPIC, value, partition=0)
        process = first(at=proxy.dsn, work_s=0.5, settings=SETTINGS | {"drain_timeout_s": 1.0, "commit_timeout_s": 1.0})
        wait_until(lambda: process.events("start"), 30)
        proxy.refuse()
        time.sleep(0.3)
        process.signal(signal.SIGTERM)
        started_s = time.monotonic()
        process.wait(20)
        print(f"ended after {time.monotonic() - started_s:.1f} s")
        book = Recorder()
        shell.subscribe(book)
        with shell:
            wait_settled(dsn)
    assert dead(dsn) == []


def test_stop__from_a_handler_and_twice__is_harmless(shell, dsn):
    book = Recorder(lambda _message: time.sleep(0.01))
    shell.subscribe(book, concurrency=2)
    shell.app.publish_many(TOPIC, list(range(50)))
    shell.start()
    wait_until(lambda: len(book.seen) > 5)
    for _ in range(2):
        assert shell.stop()
    seen = len(book.seen)
    time.sleep(0.2)
    assert len(book.seen) == seen
    assert sum(committed(dsn).values()) == seen
