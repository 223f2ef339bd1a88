"""Flows, run by hand as the drivers run them."""

import dataclasses

import pytest

from coordinator.protocol.statement import Flow, Statement, call


def statement(name):
    return Statement(name, "select coordinator.f(%s)", (1,), lambda rows: rows[0][0])


def two_calls() -> Flow[list[int]]:
    first = yield from call(statement("first"))
    second = yield from call(statement("second"))
    return [first, second]


def test_flow__results_sent__reach_the_calls_in_order():
    flow = two_calls()
    assert next(flow).name == "first"
    assert flow.send(1).name == "second"
    with pytest.raises(StopIteration) as stop:
        flow.send(2)
    assert stop.value.value == [1, 2]


def test_flow__error_thrown__is_raised_at_the_call():
    flow = two_calls()
    next(flow)
    with pytest.raises(KeyError):
        flow.throw(KeyError("x"))


def test_statement__changed_in_place__is_refused():
    with pytest.raises(dataclasses.FrozenInstanceError):
        statement("f").name = "g"
