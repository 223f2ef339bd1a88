"""Clients that send slowly, read slowly, or come in crowds: bounded, and never in the way of a probe. Over real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from http import HTTPStatus

import pytest
from support.http import get
from support.shell import wait_until

from coordinator.serving import http
from coordinator.serving.http import Response, Server

LARGE = b"x" * (16 * 1024 * 1024)


@pytest.fixture
def hung():
    """Set at the end, or by the test: until then the page `hung` is not done."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def port(hung, monkeypatch):
    # Longer than any test takes on a busy machine: what is left is left for another reason.
    monkeypatch.setattr(http, "_PATIENCE_S", 60.0)
    monkeypatch.setattr(http._Handler, "timeout", 60.0)

    def hang(_request):
        assert hung.wait(60)
        return Response(b"at last")

    routes = {
        "livez": lambda _: Response(b"well"),
        "metrics": lambda _: Response(b"many"),
        "slow": hang,
        "hung": hang,
        "large": lambda _: Response(LARGE),
    }
    server = Server("127.0.0.1", 0, routes, prompt=("livez", "slow"), apart=("metrics",))
    server.start()
    yield server.port
    server.stop()


@pytest.fixture
def clients(port):
    """Open so many connections, and send each the same; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(count, sent):
            made = []
            for _ in range(count):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
                client.sendall(sent)
                made.append(client)
            return made

        yield make


def left(client):
    """Tell whether the server has closed it without a word."""
    client.settimeout(0.0)
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def kept_waiting(client):
    """Tell whether it has neither an answer yet, nor was left."""
    client.settimeout(0.0)
    try:
        client.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def refused(client):
    with contextlib.suppress(ConnectionError):
        return client.recv(12) == b"HTTP/1.1 503"
    return False


def well(port):
    began_s = time.monotonic()
    answer = get(port, "/livez")
    return answer.status == HTTPStatus.OK and time.monotonic() - began_s < http._PATIENCE_S / 2


@pytest.mark.parametrize("sent", [b"", b"GET /li", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_connections__that_send_nothing_more__are_bounded_and_probes_get_through(port, clients, sent):
    before = threading.active_count()
    idle = clients(4 * http._MAX_CONNECTIONS, sent)
    wait_until(lambda: sum(map(left, idle)) >= 3 * http._MAX_CONNECTIONS, 30, "the oldest were left")
    wait_until(lambda: threading.active_count() - before <= http._MAX_CONNECTIONS + 1, 30, "their threads have ended")
    for _ in range(5):
        assert well(port)
    assert not left(idle[-1])


def test_connections__kept_for_another_request__are_bounded(port, clients):
    kept = clients(3 * http._MAX_CONNECTIONS, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert well(port)
    answered = [client for client in kept if client.recv(12) == b"HTTP/1.1 200"]
    assert answered
    assert kept[-1] in answered


def test_connection__a_byte_now_and_then__is_left_in_the_end(port, clients, monkeypatch):
    monkeypatch.setattr(http, "_PATIENCE_S", 1.0)
    (client,) = clients(1, b"GET /livez HTTP/1.1\r\nX-Slow: ")

    def trickled():
        with contextlib.suppress(ConnectionError):
            client.sendall(b"x")
        return left(client)

    wait_until(trickled, 30, "left")


def test_connections__that_read_nothing_of_a_large_answer__leave_room(port, clients):
    clients(2 * http._MAX_CONNECTIONS, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for _ in range(5):
        assert well(port)


def test_pages__that_hang__are_bounded_and_probes_get_through(port, clients, hung):
    """The database of a dashboard hangs, and people reload."""
    came = clients(2 * http._MAX_CONNECTIONS, b"GET /hung HTTP/1.1\r\nHost: localhost\r\n\r\n")
    room = http._MAX_PAGES + http._MAX_WAITING_PAGES
    # Which of them get a turn is left to their threads.
    wait_until(lambda: sum(map(kept_waiting, came)) <= room, 30, "there is no room for more")
    waiting = list(filter(kept_waiting, came))
    assert len(waiting) == room
    assert any(refused(client) for client in came if client not in waiting)
    for _ in range(5):
        assert well(port)
        # What is wanted most while the database hangs.
        assert get(port, "/metrics").status == HTTPStatus.OK
    hung.set()
    for client in waiting:
        client.settimeout(30)
    assert all(client.recv(12) == b"HTTP/1.1 200" for client in waiting)


def test_connections__that_all_wait_for_an_answer__are_bounded(port, clients, hung):
    """Nobody is left who was promised an answer: who comes then is turned away. Mutant: one thread more for each."""
    before = threading.active_count()
    waiting = clients(http._MAX_CONNECTIONS, b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_until(lambda: threading.active_count() - before >= http._MAX_CONNECTIONS, 30, "all are waiting")
    time.sleep(0.5)
    turned = clients(http._MAX_CONNECTIONS, b"")
    wait_until(lambda: all(map(left, turned)), 30, "all are turned away")
    wait_until(lambda: threading.active_count() - before <= http._MAX_CONNECTIONS + 1, 30, "their threads have ended")
    hung.set()
    assert all(client.recv(12) == b"HTTP/1.1 200" for client in waiting)


def test_request__with_a_body__is_refused_and_no_further_request_is_seen_in_it(port):
    """The body was answered as the next request: behind a proxy, with somebody else's answer."""
    inner = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for header in (b"Content-Length: %d" % len(inner), b"Transfer-Encoding: chunked"):
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n" + inner)
            answer = b"".join(iter(lambda client=client: client.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.count(b"HTTP/1.1") == 1


def test_request__target_that_is_none__is_answered(port):
    """It was left without an answer."""
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(b"GET http://[ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400")
