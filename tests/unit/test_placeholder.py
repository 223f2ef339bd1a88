"""The one rule that puts the schema's name into SQL."""

import pytest

from coordinator.errors import ConfigError
from coordinator.protocol.placeholder import render


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("select coordinator.f(1)", 'select "orders_log".f(1)'),
        ("coordinator.f()", '"orders_log".f()'),
        ("'coordinator.topics'::regclass", "'\"orders_log\".topics'::regclass"),
        ("f(coordinator.a,coordinator.b)", 'f("orders_log".a,"orders_log".b)'),
        ("coordinator.t%rowtype, %%, %(a)s, :b", '"orders_log".t%rowtype, %%, %(a)s, :b'),
        ("pg_coordinator.x", "pg_coordinator.x"),
        ("a.coordinator.x", "a.coordinator.x"),
        ('"coordinator".x', '"coordinator".x'),
        ('"coordinator.x"', '"coordinator.x"'),
        ("coordinators.x", "coordinators.x"),
        ("coordinator .x", "coordinator .x"),
        ("current_setting('pgcoord.topic')", "current_setting('pgcoord.topic')"),
        ("ocoordinator.x", "ocoordinator.x"),
    ],
)
def test_render__text__replaces_the_token_and_nothing_else(text, rendered):
    assert render(text, "orders_log") == rendered


def test_render__rendered_text__stays_as_it_is():
    once = render("select coordinator.f()", "coordinator")
    assert once == 'select "coordinator".f()'
    assert render(once, "orders_log") == once


@pytest.mark.parametrize("name", ["coordinator", "_x", "a", "order", "a" * 41, "x9_"])
def test_render__usable_name__is_taken(name):
    assert render("coordinator.f()", name) == f'"{name}".f()'


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Orders",
        "9a",
        "a-b",
        'a"b',
        "a.b",
        "a b",
        "a" * 42,
        "pg_x",
        "public",
        "information_schema",
        "a\n",
        "ä",
        "a%s",
    ],
)
def test_render__unusable_name__raises_config_error(name):
    with pytest.raises(ConfigError):
        render("select 1", name)
