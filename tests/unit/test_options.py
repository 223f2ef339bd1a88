"""What a subscription is refused for, before any database."""

import pytest

from coordinator import Coordinator
from coordinator.errors import ConfigError


def test_subscribe__misspelt_option__is_named_with_the_one_that_was_meant():
    app = Coordinator("postgresql://nowhere.invalid/x")
    with pytest.raises(ConfigError, match=r"^there is no option 'concurency'; did you mean concurrency\?$"):
        app.subscribe("t", group="g", concurency=2)
    with pytest.raises(ConfigError, match="there are: batch_size, concurrency"):
        app.subscribe("t", group="g", zzz=2)
