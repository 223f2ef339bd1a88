"""Statements and flows on real connections: every case on a Connection and on an AsyncConnection."""

import asyncio

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from coordinator.db.drive import adrive, drive
from coordinator.db.dsn import conninfo
from coordinator.errors import DeniedError, InvalidInputError, StaleEpochError, UnavailableError
from coordinator.protocol.statement import Statement, call


class Blocking:
    raw_cursor = psycopg.RawCursor

    def run(self, dsn, flow, **options):
        with psycopg.connect(dsn, autocommit=True, **options) as connection:
            connection.adapters.register_loader("jsonb", TextLoader)
            return drive(flow, connection, "orders_log")


class Aio:
    raw_cursor = psycopg.AsyncRawCursor

    def run(self, dsn, flow, **options):
        async def main():
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, **options) as connection:
                connection.adapters.register_loader("jsonb", TextLoader)
                return await adrive(flow, connection, "orders_log")

        return asyncio.run(main())


@pytest.fixture(params=[Blocking, Aio], ids=["blocking", "aio"])
def driver(request):
    return request.param()


@pytest.fixture
def dsn(server):
    return conninfo(server.dsn)


def ask(text, *parameters):
    return call(Statement("test", text, parameters, lambda rows: [tuple(row) for row in rows]))


def test_drive__callers_own_cursor_row_factory_and_loaders__do_not_reach_the_parser(driver, dsn):
    text = "select '{\"a\": 1}'::jsonb, %s::text, 'coordinator.t', '\\x00ff'::bytea"
    rows = driver.run(dsn, ask(text, "b"), row_factory=dict_row, cursor_factory=driver.raw_cursor)
    assert rows == [({"a": 1}, "b", '"orders_log".t', b"\x00\xff")]


def test_drive__statement_without_rows__gives_none_to_the_parser(driver, dsn):
    assert driver.run(dsn, ask("set application_name = 'test'")) == []


def test_drive__database_error__is_raised_in_the_flow_which_goes_on(driver, dsn):
    def flow():
        try:
            yield from ask(
                "do $$ begin raise exception 'old epoch'"
                " using errcode = 'KG001', detail = '{\"held\": 4, \"current\": 5}'; end $$"
            )
        except StaleEpochError as error:
            return error, (yield from ask("select 1"))

    error, rows = driver.run(dsn, flow())
    assert (str(error), error.held, error.current) == ("old epoch", 4, 5)
    # All that it says is said by ours: a traceback shows it once.
    assert error.__cause__ is None
    assert isinstance(error.__context__, psycopg.Error)
    assert rows == [(1,)]


def test_drive__error_the_flow_does_not_catch__comes_out_after_its_finally(driver, dsn):
    steps = []

    def flow():
        try:
            yield from ask("select 1 / 0")
        finally:
            steps.append("cleaned up")

    with pytest.raises(psycopg.errors.DivisionByZero):
        driver.run(dsn, flow())
    assert steps == ["cleaned up"]


def test_drive__parser_fails__is_raised_in_the_flow(driver, dsn):
    with pytest.raises(ZeroDivisionError):
        driver.run(dsn, call(Statement("test", "select 1", (), lambda _rows: 1 // 0)))


def test_drive__nul_in_a_text__is_invalid_input(driver, dsn):
    with pytest.raises(InvalidInputError):
        driver.run(dsn, ask("select %s::text", "a\0b"))


def test_drive__backend_terminated__is_unavailable_now_and_later(driver, dsn):
    def flow():
        for _ in range(2):
            with pytest.raises(UnavailableError):
                yield from ask("select pg_terminate_backend(pg_backend_pid())")
        return "done"

    assert driver.run(dsn, flow()) == "done"


def test_drive__no_privilege__is_denied(driver, dsn):
    def flow():
        yield from ask("begin")
        yield from ask("set local role pg_monitor")
        yield from ask("select * from pg_authid")

    with pytest.raises(DeniedError):
        driver.run(dsn, flow())
