"""`coordinator sql`."""

import pytest

from coordinator.db import queries


def test_views__listed__with_what_they_are(on):
    ended = on("sql", "views")
    assert ended.code == 0
    assert ended.lines[0].split() == ["VIEW", "WHAT"]
    assert any(line.startswith("offsets ") for line in ended.lines)
    assert all(len(line.split()) > 2 for line in ended.lines[1:])


def test_views__json__has_the_columns(on):
    views = {view["view"]: view for view in on("sql", "views", "--json").json["views"]}
    assert views["group_lag"]["columns"]["lag"] == "bigint"
    assert views["group_lag"]["summary"]


def test_views__with_columns__are_rows(on):
    assert ["group_lag", "lag", "bigint"] in [line.split() for line in on("sql", "views", "--columns").lines]


def test_query__without_a_name__lists_them(call):
    ended = call("sql", "query")
    assert ended.code == 0
    assert [line.split()[0] for line in ended.lines[1:]] == [found.name for found in queries.queries()]
    assert len(call("sql", "query", "--json").json["queries"]) == len(queries.queries())


@pytest.mark.parametrize("name", [found.name for found in queries.queries()])
def test_query__each__as_table_and_json(on, name):
    table, lines = on("sql", "query", name), on("sql", "query", name, "--json")
    assert (table.code, lines.code) == (0, 0)
    assert table.lines
    assert len(lines.objects) == len(table.lines) - 1


def test_query__json__one_object_a_line(on):
    on("topics", "create", "orders")
    (row,) = on("sql", "query", "topics", "--json").objects
    assert (row["topic"], row["segments"], row["published_per_s"]) == ("orders", 1, 0)


def test_query__printed__is_for_psql(call):
    ended = call("sql", "query", "who-is-behind", "--print", "--schema", "shop_log")
    assert (ended.code, ended.text.endswith(";\n")) == (0, True)
    assert '"shop_log".group_lag' in ended.text


def test_query__unknown__lists_the_names(call):
    ended = call("sql", "query", "nonsense")
    assert ended.code == 2
    assert "who-is-behind" in ended.err


def test_query__watched__shows_again_until_ctrl_c(start, dsn):
    import os
    import signal

    process = start("sql", "query", "topics", "--watch", "0.1", "--dsn", dsn)
    assert process.stdout.readline().startswith(b"TOPIC")
    assert process.stdout.readline().startswith(b"TOPIC")
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
