"""What the public API says to numbers and names that the database has no form for."""

import pytest

from coordinator import Coordinator
from coordinator.errors import ConfigError, InvalidInputError


@pytest.fixture
def app(dsn):
    with Coordinator(dsn) as made:
        made.create_topic("orders", 1)
        yield made


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.create_topic("t", 2**70),
        lambda app: app.create_topic("t", "1"),
        lambda app: app.create_topic("t", True),
        lambda app: app.create_topic("t", max_message_bytes=2**31),
        lambda app: app.create_topic("t", max_backlog=2**63),
        lambda app: app.peek("orders", partition="0"),
        lambda app: app.peek("orders", partition=True),
        lambda app: app.peek("orders", from_offset=2**63),
        lambda app: app.peek("orders", limit=2**31),
        lambda app: app.message_states("orders", 0, 2**63),
        lambda app: app.publish("orders", 1, partition=True),
        lambda app: app.publish("orders", 1, partition="0"),
        lambda app: app.create_topic("\udcff"),
        lambda app: app.topic("\udcff"),
        lambda app: app.publish("\udcff", 1),
        lambda app: app.topic("a\0b"),
    ],
)
def test_argument__that_no_column_takes__is_invalid_input(app, call):
    with pytest.raises(InvalidInputError):
        call(app)


def test_consumer__name_without_a_utf8_form__is_a_config_error(app):
    for names in (("\udcff", "g"), ("orders", "\ud800")):
        with pytest.raises(ConfigError, match="UTF-8"):
            app.consumer(names[0], group=names[1])
    app.consumer("orders", group="größe")
