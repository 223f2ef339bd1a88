"""A taker that computes sees that an answer waits to be read."""

from __future__ import annotations

import socket

import pytest

from coordinator.consumer.yielding import Interpreter


@pytest.fixture
def ends():
    server, client = socket.socketpair()
    with server, client:
        yield server, client


def test_interpreter__an_answer_has_come__is_wanted_until_it_is_read(ends):
    server, client = ends
    interpreter = Interpreter()
    with interpreter.awaiting(client):
        assert not interpreter.wanted()
        server.sendall(b"x")
        assert interpreter.wanted()
        client.recv(1)
        assert not interpreter.wanted()


def test_interpreter__nobody_waits_for_an_answer__is_not_wanted(ends):
    server, client = ends
    server.sendall(b"x")
    interpreter = Interpreter()
    assert not interpreter.wanted()
    with pytest.raises(ConnectionError), interpreter.awaiting(client):
        raise ConnectionError
    assert not interpreter.wanted()
