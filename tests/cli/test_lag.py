"""`coordinator lag`: its numbers, and the thresholds that a monitor asks with."""

import psycopg
import pytest


@pytest.fixture
def behind(on, dsn):
    """Billing has three messages to settle on orders, audit none."""
    on("topics", "create", "orders", "--partitions", "2")
    on("messages", "publish", "orders", "--partition", "1", stdin=b"1\n2\n3\n")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select coordinator.join_group(null, 'billing', array['orders'], 'earliest')")
        connection.execute("select coordinator.join_group(null, 'audit', array['orders'], 'latest')")
        connection.execute(
            "update coordinator.topic_1 set published_at = now() - interval '2 minutes' where \"offset\" = 0"
        )
    return on


def test_lag__of_all_groups__is_listed_the_largest_first(behind):
    ended = behind("lag")
    assert ended.code == 0
    assert [line.split()[:4] for line in ended.lines] == [
        ["GROUP", "TOPIC", "LAG", "MAX-PARTITION-LAG"],
        ["billing", "orders", "3", "3"],
        ["audit", "orders", "0", "0"],
    ]


def test_lag__json__is_one_object_a_line(behind):
    billing, audit = behind("lag", "--json").objects
    assert (billing["lag"], billing["retrying"], billing["owned"], billing["partitions"]) == (3, 0, 0, 2)
    assert 119 < billing["oldest_age_s"] < 600
    assert audit["oldest_age_s"] is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--max-lag", "3"), 0),
        (("--max-lag", "2"), 1),
        (("--max-lag", "0", "audit"), 0),
        (("--max-age", "1h"), 0),
        (("--max-age", "60s"), 1),
        (("--max-age", "60"), 1),
        (("--max-age", "1.5min"), 1),
        (("--max-age", "0", "audit"), 0),
        (("--max-lag", "2", "--json"), 1),
    ],
)
def test_lag__past_a_threshold__is_exit_code_1(behind, arguments, code):
    ended = behind("lag", *arguments)
    assert ended.code == code
    assert ("billing on orders" in ended.err) is bool(code)


@pytest.mark.parametrize("text", ["soon", "-1s", "1 week", "nan"])
def test_lag__no_duration__is_usage(behind, text):
    assert behind("lag", f"--max-age={text}").code == 2


def test_lag__unknown_group__is_told(behind):
    ended = behind("lag", "billing", "nobody")
    assert (ended.code, ended.out) == (2, b"")
    assert "nobody" in ended.err


def test_lag__without_groups__is_empty(on):
    ended = on("lag", "--max-lag", "0")
    assert (ended.code, len(ended.lines)) == (0, 1)
