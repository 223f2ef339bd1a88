"""What handlers do that nobody expects, and databases that are set up in an odd way."""

import os
import time

import psycopg
import pytest
from support.shell import wait_until

from coordinator import Coordinator, Outgoing


class UntellableError(Exception):
    """An error whose text can't be had."""

    def __str__(self):
        message = "no text"
        raise RuntimeError(message)


def dead(dsn):
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            'select d."offset", d.reason, d.attempts from coordinator.dead_letter_list d'
        ).fetchall()


def lag(app):
    return sum(offset.lag for offset in app.group_offsets("g")) if app.groups() else -1


def running(app):
    import threading

    thread = threading.Thread(target=app.run, kwargs={"install_signal_handlers": False})
    thread.start()
    return thread


def test_handler__error_that_cannot_tell_itself__is_charged_and_buried(dsn):
    with Coordinator(dsn) as app:
        app.create_topic("t", 1)
        app.publish_many("t", [0, 1, 2])

        @app.subscribe("t", group="g", max_attempts=2, retry=[0.05])
        def handle(message):
            if message.value == 1:
                raise UntellableError

        thread = running(app)
        wait_until(lambda: lag(app) == 0, 10)
        app.stop()
        thread.join(10)
    assert dead(dsn) == [(1, "attempts", 2)]


def test_handler__ends_its_own_session_each_time__is_charged_and_holds_nobody_up(dsn):
    """The server is up, as our own connections show: what the handler met is its own doing."""
    done = []
    with Coordinator(dsn) as app:
        app.create_topic("t", 1)
        app.publish_many("t", [Outgoing("poison", key="p"), *(Outgoing(n, key=f"k{n}") for n in range(4))])

        @app.subscribe("t", group="g", max_attempts=2, retry=[0.05], transactional=True)
        def handle(message, connection):
            if message.value == "poison":
                connection.execute("select pg_terminate_backend(pg_backend_pid())")
            done.append(message.value)

        thread = running(app)
        wait_until(lambda: lag(app) == 0, 15)
        app.stop()
        thread.join(10)
    assert sorted(done) == [0, 1, 2, 3]
    assert dead(dsn) == [(0, "attempts", 2)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_handler__forks_and_its_child_comes_back__the_child_consumes_nothing(dsn, tmp_path):
    log = tmp_path / "starts"
    with Coordinator(dsn) as app:
        app.create_topic("t", 1)
        app.publish_many("t", list(range(6)))

        @app.subscribe("t", group="g", ordering="partition")
        def handle(message):
            with log.open("a") as file:
                file.write(f"{message.value}\n")
            if message.value == 1 and os.fork() == 0:
                return  # what a child should never do

        thread = running(app)
        wait_until(lambda: lag(app) == 0, 10)
        time.sleep(0.3)
        app.stop()
        thread.join(10)
    assert log.read_text().split() == [str(number) for number in range(6)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_consumer__in_a_forked_child__hands_over_nothing_and_says_so_at_once(dsn):
    """What its memory holds is the parent's. Mutant: a child that is not told."""
    with Coordinator(dsn) as app:
        app.create_topic("t", 1)
        app.publish_many("t", list(range(40)))
        with app.consumer("t", group="g") as consumer:
            ahead = iter(consumer)
            for _ in range(10):
                next(ahead).ack()
            began_s = time.monotonic()
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                told = []
                for call in (lambda: consumer.poll(5, 1.0), lambda: next(ahead), consumer.commit):
                    try:
                        told.append(f"returned {call()}")
                    except BaseException as error:
                        told.append(f"{type(error).__name__} {error}")
                os.write(writing, "\n".join(told).encode())
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading) as pipe:
                told = pipe.read().splitlines()
            os.waitpid(child, 0)
            assert [line.startswith("LoopFailedError") and "fork" in line for line in told] == [True] * 3, told
            assert time.monotonic() - began_s < 3
            rest = [next(ahead) for _ in range(30)]
            for message in rest:
                message.ack()
            consumer.commit()
    assert sorted(message.value for message in rest) == list(range(10, 40))


@pytest.mark.parametrize("transactional", [False, True])
def test_handler__returns_work_that_nobody_does__has_failed(dsn, transactional):
    async def work(*_arguments):
        done.append(1)

    def many(*_arguments):
        done.append(1)
        yield 1

    done: list[int] = []
    with Coordinator(dsn) as app:
        app.create_topic("t", 1)
        app.publish_many("t", [1, 2])
        handlers = iter([work, many])
        arguments = {"group": "g", "max_attempts": 1, "ordering": "none", "transactional": transactional}

        def hand_on(*given):
            return next(handlers)(*given)

        app.subscribe("t", **arguments)(hand_on)
        thread = running(app)
        wait_until(lambda: lag(app) == 0, 10)
        app.stop()
        thread.join(10)
    assert done == []
    assert dead(dsn) == [(0, "attempts", 1), (1, "attempts", 1)]


@pytest.mark.parametrize(
    "setting", ["datestyle = 'german, dmy'", "quote_all_identifiers = on", "intervalstyle = 'sql_standard'"]
)
def test_database__set_up_in_an_odd_way__everything_works(dsn, setting, pytestconfig):
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set {setting}')
    with Coordinator(dsn) as app:
        app.create_topic("t", 2)
        app.rotate("t")
        app.publish_many("t", [1, 2, 3])
        assert len(app.peek("t")) == 3
        assert app.topic("t").segment == 2
        with app.consumer("t", group="g") as consumer:
            for _ in range(3):
                consumer.poll(1, 5)[0].ack(wait=True)
            began_s = time.monotonic()
            app.publish("t", 4)
            consumer.poll(1, 5)[0].ack()
            # Behind a pooler there is no LISTEN, and the poll comes once a second.
            if not pytestconfig.getoption("--pgbouncer"):
                assert time.monotonic() - began_s < 0.9, "no wake-up came"
        assert lag(app) == 0
        assert app.group_members() == []


def test_rolled_back_load__is_passed_quickly_by_a_slow_handler(dsn):
    with Coordinator(dsn) as app, psycopg.connect(dsn) as own:
        app.create_topic("t", 1)
        for _ in range(20):
            app.publish_many("t", [b"x"] * 1000, connection=own)
        own.rollback()
        app.publish("t", "behind it")
        began_s = time.monotonic()
        with app.consumer("t", group="g") as consumer:
            assert [message.value for message in consumer.poll(1, 10)] == ["behind it"]
        assert time.monotonic() - began_s < 3
