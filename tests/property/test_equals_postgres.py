"""What the core computes and PostgreSQL computes too must be the same."""

import psycopg
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coordinator.core.partitioning import partition_of
from coordinator.core.ranges import from_text, merge, to_text

# PostgreSQL's text holds no NUL, and UTF-8 no surrogates.
KEYS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def test_partition_of__any_key__is_the_same_in_sql(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:

        @settings(deadline=None, max_examples=60)
        @given(keys=st.lists(KEYS, min_size=1, max_size=20), partitions=st.integers(1, 1024))
        @example(
            keys=["", "customer-42", "żółw", "🦉", "👩‍🚀", " ", "\n", "\\", "é", "e\u0301", "a" * 10_000], partitions=12
        )
        @example(keys=["", "x"], partitions=1)
        def check(keys, partitions):
            rows = connection.execute(
                "select coordinator.partition_of(u.k, %s) from unnest(%s::text[]) with ordinality as u(k, n) order by u.n",
                (partitions, keys),
            ).fetchall()
            assert [row[0] for row in rows] == [partition_of(key, partitions) for key in keys]

        check()


def test_ranges__any__are_what_an_int8multirange_makes_of_them(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:

        @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
        @given(some=PAIRS, others=PAIRS)
        def check(some, others):
            text = "{" + ",".join(f"[{lo},{hi})" for lo, hi in [*some, *others]) + "}"
            stored, union = connection.execute(
                "select %s::int8multirange::text, (%s::int8multirange + %s::int8multirange)::text",
                (text, to_text(merge(some)), to_text(merge(others))),
            ).fetchone()
            assert from_text(stored) == from_text(union) == tuple(merge(some, others))

        check()
