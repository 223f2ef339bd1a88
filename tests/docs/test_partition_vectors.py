"""The test vectors that docs/decisions/0010 gives to other languages hold in Python and in SQL."""

import re
from pathlib import Path

import psycopg

from coordinator.core.partitioning import partition_of

PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "0010-partition-of-a-key.md"
VECTORS = [
    (key, int(partitions), int(partition))
    for key, partitions, partition in re.findall(
        r"^\| `(.*?)` \| (\d+) \| (\d+) \|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
]


def test_vectors_of_the_page__in_python__are_true():
    assert len(VECTORS) == 8
    assert [partition_of(key, partitions) for key, partitions, _ in VECTORS] == [partition for *_, partition in VECTORS]


def test_vectors_of_the_page__in_sql__are_true(dsn):
    with psycopg.connect(dsn) as connection:
        found = [
            connection.execute("select coordinator.partition_of(%s, %s)", vector[:2]).fetchone() for vector in VECTORS
        ]
    assert found == [(partition,) for *_, partition in VECTORS]
