"""The size of a window: bounded, and led by how fast its messages are started."""

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.window import Window


def play(window, rate, seconds, batch=1):
    """Start messages at an even rate."""
    for turn in range(int(rate * seconds / batch)):
        window.on_started(batch, turn * batch / rate)
    return window.size


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(1, 600), st.floats(0, 5), st.booleans()), max_size=60),
)
def test_size__any_history__stays_between_its_bounds(max_size, steps):
    window, now_s = Window(max_size), 0.0
    for count, seconds, idle in steps:
        now_s += seconds
        if idle:
            window.on_idle()
        else:
            window.on_started(count, now_s)
        assert min(4, max_size) <= window.size <= max_size


def test_fast_handlers__size_grows_to_the_bound():
    assert play(Window(500), rate=5000, seconds=2) == 500


def test_slow_handlers__size_shrinks_to_the_least():
    assert play(Window(500), rate=0.5, seconds=60) == 4


@given(st.sampled_from([10, 20, 50, 100]))
def test_steady_handlers__size_is_one_to_four_seconds_of_work(rate):
    """About two: doubled below one second's work, halved above two."""
    size = play(Window(500), rate=rate, seconds=120)
    assert rate / 2 <= size <= 4 * rate


def test_nothing_to_start_for_long__does_not_count_as_slow():
    window = Window(500)
    for turn in range(20):
        window.on_started(1, turn * 60.0)
        window.on_idle()
    assert window.size == 64
