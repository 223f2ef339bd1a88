"""What can be a handler, told when it is registered and not when messages are lost by it."""

import functools

import pytest

from coordinator import AsyncCoordinator, Coordinator
from coordinator.consumer.pacing import CpuGuard
from coordinator.errors import ConfigError
from coordinator.settings import Settings

DSN = "host=nowhere.invalid"


def test_subscribe__coroutine_function_on_threads__is_refused():
    """It would return a coroutine that nobody awaits, and that would count as done."""
    app = Coordinator(DSN)

    with pytest.raises(ConfigError, match="AsyncCoordinator"):

        @app.subscribe("orders", group="billing")
        async def bill(message): ...


def _plain(_message):
    yield 1


async def _asynchronous(_message):
    yield 1


class _Called:
    def __call__(self, _message):
        yield 1


@pytest.mark.parametrize("handler", [_plain, _asynchronous, _Called(), functools.partial(_plain)])
@pytest.mark.parametrize("face", [Coordinator, AsyncCoordinator])
def test_subscribe__generator__is_refused(face, handler):
    """A stray yield: calling it would run nothing, and count as done."""
    with pytest.raises(ConfigError, match="generator"):
        face(DSN).subscribe("orders", group="billing")(handler)


def test_on_dead_letter__coroutine_function_on_threads__is_refused():
    async def tell(_letter): ...

    app = Coordinator(DSN)
    with pytest.raises(ConfigError, match="on_dead_letter"):
        app.subscribe("orders", group="billing", on_dead_letter=tell)(print)
    with pytest.raises(ConfigError, match="on_dead_letter"):
        app.consumer("orders", group="billing", on_dead_letter=tell)


@pytest.mark.parametrize("face", [Coordinator, AsyncCoordinator])
def test_subscribe__handler_without_place_for_the_connection__is_refused(face):
    app = face(DSN)

    with pytest.raises(ConfigError, match="connection"):

        @app.subscribe("orders", group="billing", transactional=True)
        async def bill(message): ...


@pytest.mark.parametrize("face", [Coordinator, AsyncCoordinator])
def test_subscribe__second_handler_of_a_group_and_topic__is_refused(face):
    app = face(DSN)
    app.subscribe("orders", "refunds", group="billing")(lambda message: None)
    app.subscribe("orders", group="audit")(lambda message: None)
    with pytest.raises(ConfigError, match="refunds"):
        app.subscribe("refunds", group="billing")(lambda message: None)


def test_cpu_guard__without_a_percentage__never_looks():
    guard = CpuGuard(None)
    assert not guard.busy(0.0)
    assert guard.next_s == float("inf")


def test_cpu_guard__busier_than_asked__says_so_until_it_looks_again(monkeypatch):
    shares = iter([95.0, 10.0])
    monkeypatch.setattr("psutil.cpu_percent", lambda _interval: next(shares))
    guard = CpuGuard(80.0)
    assert guard.busy(0.0)
    assert guard.busy(0.5)
    assert not guard.busy(1.0)


@pytest.mark.parametrize("share", [0, 101, -5])
def test_settings__pause_above_cpu_that_is_no_percentage__is_refused(share):
    with pytest.raises(ConfigError, match="pause_above_cpu"):
        Settings(pause_above_cpu=share)
