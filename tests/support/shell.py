"""What the tests of the consumer shell share: short times, waiting with a limit, and SQL's own account of a group."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg

from coordinator import Coordinator, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coordinator import Consumer, Message

GROUP = "ledger"
TOPIC = "orders"


def short(**changes: Any) -> Settings:
    """Settings under which an owner that is gone is replaced within two seconds."""
    times: dict[str, Any] = {
        "lease_s": 1.5,
        "heartbeat_s": 0.3,
        "self_fence_margin_s": 0.3,
        "membership_poll_s": 0.2,
        "rebalance_debounce_s": 0.0,
        "commit_timeout_s": 10.0,
        "drain_timeout_s": 5.0,
        "connect_timeout_s": 2.0,
    }
    return Settings(**(times | changes))


def wait_until(condition: Callable[[], Any], limit_s: float = 30.0, what: str = "") -> Any:
    """Return the first true answer; fail after the limit."""
    deadline_s = time.monotonic() + limit_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {limit_s:g} s: {what or condition}")
        time.sleep(0.01)


def publish(app: Coordinator, count: int, *, start: int = 0, partition: int | None = None) -> list[int]:
    """Publish numbers, spread over the partitions by their keys unless one is named; returns them."""
    numbers = list(range(start, start + count))
    if partition is not None:
        for number in numbers:
            app.publish(TOPIC, number, partition=partition)
    else:
        from coordinator import Outgoing

        app.publish_many(TOPIC, [Outgoing(number, str(number)) for number in numbers])
    return numbers


def drain(consumer: Consumer, count: int, limit_s: float = 15.0) -> list[Message]:
    """Take and ack until `count` messages came, or the limit is over."""
    found: list[Message] = []
    deadline_s = time.monotonic() + limit_s
    while len(found) < count and time.monotonic() < deadline_s:
        for message in consumer.poll(min(100, count - len(found)), 0.2):
            found.append(message)
            message.ack()
    return found


def committed(dsn: str, group: str = GROUP) -> dict[int, int]:
    """The committed offset per partition, as another connection sees it."""
    rows = query(dsn, 'select o.partition, o.current_offset from coordinator.offsets o where o."group" = %s', group)
    return dict(rows)


def owners(dsn: str, group: str = GROUP) -> dict[int, str | None]:
    """The client id that owns each partition."""
    return dict(query(dsn, 'select o.partition, o.client_id from coordinator.offsets o where o."group" = %s', group))


def epochs(dsn: str, group: str = GROUP) -> dict[int, int]:
    return dict(query(dsn, 'select o.partition, o.epoch from coordinator.offsets o where o."group" = %s', group))


def query(dsn: str, text: str, *parameters: object) -> Sequence[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        # Without any, a % in a function's text is one.
        cursor = connection.execute(text, parameters or None)
        return cursor.fetchall() if cursor.description else []


def terminate(dsn: str, name: str) -> int:
    """pg_terminate_backend for connections whose application_name begins with `name`; returns how many."""
    rows = query(
        dsn,
        "select pg_terminate_backend(a.pid) from pg_stat_activity a "
        "where a.application_name like %s || '%%' and a.datname = current_database() and a.pid <> pg_backend_pid()",
        name,
    )
    return len(rows)


@contextlib.contextmanager
def locked(dsn: str, text: str, *parameters: object) -> Iterator[None]:
    """A foreign transaction that holds what the statement locks."""
    with psycopg.connect(dsn) as connection:
        connection.execute(text, parameters)
        yield
        connection.rollback()


def threads() -> set[str]:
    """Names of the threads that the package started and that still run."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("coordinator")}


class Reading:
    """A consumer that is read by a thread of its own, and remembers what it was given."""

    def __init__(self, consumer: Consumer, *, wait: bool = False) -> None:
        self.consumer = consumer
        self.deliveries: list[tuple[int, int, int, int]] = []
        self.values: list[Any] = []
        self.confirmed: list[tuple[int, int]] = []
        self.errors: list[BaseException] = []
        self._wait = wait
        self._thread = threading.Thread(target=self._read, name="reading", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, limit_s: float = 20.0) -> None:
        """Close the consumer and wait for the thread."""
        self.consumer.close()
        self._thread.join(limit_s)
        assert not self._thread.is_alive()

    def _read(self) -> None:
        from coordinator.errors import FencedError, UnavailableError

        try:
            for message in self.consumer:
                self.deliveries.append((message.partition, message.offset, message.epoch, message.attempt))
                self.values.append(message.value)
                try:
                    message.ack(wait=self._wait)
                except (FencedError, UnavailableError) as error:
                    self.errors.append(error)
                else:
                    if self._wait:
                        self.confirmed.append((message.partition, message.offset))
        except BaseException as error:
            self.errors.append(error)
            raise


class Publishing:
    """Publishes numbers by a thread of its own until stopped; what is not sure to be committed is remembered apart."""

    def __init__(self, app: Coordinator, topic: str) -> None:
        self.sure: list[int] = []
        self.unsure: list[int] = []
        self._app, self._topic = app, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="publishing", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _publish(self) -> None:
        from coordinator.errors import CoordinatorError

        number = 0
        while not self._stop.is_set():
            try:
                self._app.publish(self._topic, number, key=str(number))
            except CoordinatorError:
                self.unsure.append(number)
                self._stop.wait(0.05)
            else:
                self.sure.append(number)
                self._stop.wait(0.002)
            number += 1
