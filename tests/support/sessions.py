"""Two and more sessions on one database: what each does is a line of the test, in the order of the lines."""

import threading
import time
from contextlib import ExitStack

import psycopg
from support.patches import GATE

from coordinator.db.schema import install_from_sql
from coordinator.protocol.placeholder import render

LIMIT_S = 20.0


class Pending:
    """A statement that runs in a thread of its own."""

    def __init__(self, work):
        self._result = None
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work):
        try:
            self._result = work()
        except BaseException as error:
            self._error = error

    @property
    def done(self):
        return not self._thread.is_alive()

    def result(self, limit_s=LIMIT_S):
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise TimeoutError(f"still running after {limit_s} s")
        if self._error is not None:
            raise self._error
        return self._result


class Session:
    """One connection, in autocommit mode; transactions are begun and ended by hand."""

    def __init__(self, db, schema="coordinator"):
        self._db = db
        self._schema = schema
        self.connection = psycopg.connect(db.dsn, autocommit=True)
        self.pid = self.connection.info.backend_pid

    def run(self, text, *parameters):
        """All rows of a statement; no rows where it has none."""
        cursor = self.connection.execute(render(text, self._schema), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, text, *parameters):
        """The only row, or its only value."""
        (row,) = self.run(text, *parameters)
        return row[0] if len(row) == 1 else row

    def start(self, text, *parameters):
        """Run a statement in the background."""
        return Pending(lambda: self.run(text, *parameters))

    def begin(self, isolation="read committed"):
        self.run(f"begin isolation level {isolation}")
        return self

    def commit(self):
        self.run("commit")

    def rollback(self):
        self.run("rollback")

    def publish(self, value=1, partition=0, topic="t", *, wake=False):
        """Publish one message and return its offset."""
        return self.one(*publish_call(value, partition, topic, wake=wake))

    def start_publish(self, value=1, partition=0, topic="t", *, wake=False):
        """Publish one message in the background; its result is a list of one row with the offset."""
        return self.start(*publish_call(value, partition, topic, wake=wake))

    def stop_at(self, *steps):
        """From now on this session stops at these gates as long as they are held."""
        self.run("select set_config('test.gates', %s, false)", ",".join(steps))
        return self

    def locks(self):
        """How many locks of an open publisher this session holds."""
        return self._db.observer.one(
            "select count(*) from pg_locks l where l.pid = %s and l.locktype = 'advisory' and l.mode = 'ShareLock'",
            self.pid,
        )

    def close(self):
        self.connection.close()


def publish_call(value, partition, topic, *, wake):
    return (
        'select p."offset" from coordinator.publish(%s, to_jsonb(%s::text), p_partition => %s, p_wake => %s) p',
        topic,
        str(value),
        partition,
        wake,
    )


class Gate:
    """Held: whoever comes to the step waits. `arrived` returns when somebody does."""

    def __init__(self, db, step):
        self._db = db
        self._step = step

    def __enter__(self):
        self._db.gatekeeper.run("select pg_advisory_lock(4242, hashtext(%s))", self._step)
        return self

    def __exit__(self, *_):
        self._db.gatekeeper.run("select pg_advisory_unlock(4242, hashtext(%s))", self._step)

    def arrived(self, limit_s=LIMIT_S):
        wait_until(
            lambda: self._db.observer.one(
                "select count(*) from pg_locks l where l.locktype = 'advisory' and not l.granted and l.classid = 4242 "
                "and l.objid = (hashtext(%s)::bigint & 4294967295)::oid",
                self._step,
            ),
            limit_s,
        )


def wait_until(condition, limit_s=LIMIT_S, pause_s=0.002):
    """Ask until the answer is true, and return it."""
    deadline_s = time.monotonic() + limit_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {limit_s} s")
        time.sleep(pause_s)


class Db:
    """A database with topic `t`, sessions on it, and functions that may be patched."""

    def __init__(self, dsn, *, partitions=1, patches=()):
        self.dsn = dsn
        self._stack = ExitStack()
        self.observer = self.session()
        self.gatekeeper = self.session()
        self.observer.run(GATE)
        for text in patches:
            self.observer.run(text)
        self.topic_id = self.create_topic("t", partitions)

    def session(self, schema="coordinator"):
        made = Session(self, schema)
        self._stack.callback(made.close)
        return made

    def create_topic(self, name, partitions=1):
        return self.observer.one("select c.topic_id from coordinator.create_topic(%s, %s) c", name, partitions)

    def rotate(self, topic="t"):
        segment = self.observer.one("select coordinator.add_segment(%s)", topic)
        self.observer.run("select coordinator.open_segment(%s, %s)", topic, segment)
        return segment

    def high(self, partition=0):
        return self.observer.one("select coordinator.high_offset(%s, %s)", self.topic_id, partition)

    def gate(self, step):
        return Gate(self, step)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()


def second_schema(dsn, name):
    """Install the functions once more, into another schema of the same database."""
    install_from_sql(dsn, name)
