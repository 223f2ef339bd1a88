"""The pool lends what works, and gets back every place that it has lent."""

import pytest
from psycopg_pool import ConnectionPool
from support.shell import TOPIC

from coordinator import Coordinator, Settings

SIZE = 2


class Alarm(BaseException):
    """What a signal's handler raises, at any moment."""


def test_publish__a_signal_s_exception_comes_while_its_connection_is_tried__loses_no_place(dsn, monkeypatch):
    """Mutant: only errors of psycopg give it back; after as many as there are places nothing can be published any more."""
    with Coordinator(dsn, settings=Settings(pool_size=SIZE, pool_timeout_s=5)) as app:
        app.create_topic(TOPIC, 1)
        with monkeypatch.context() as patched:
            patched.setattr("coordinator.db.connect._TRUSTED_S", 0.0)
            patched.setattr(ConnectionPool, "check_connection", interrupted)
            for _ in range(SIZE + 1):
                with pytest.raises(Alarm):
                    app.publish(TOPIC, 1)
        app.publish(TOPIC, 2)
        assert [message.value for message in app.peek(TOPIC)] == [2]


def interrupted(_connection):
    raise Alarm
