"""Vectors that pin the hash of keys: changing it would move the keys of every topic."""

import pytest

from coordinator.core.partitioning import partition_of


@pytest.mark.parametrize(
    ("key", "partitions", "wanted"),
    [
        ("", 1, 0),
        ("", 12, 0xE3B0C442 % 12),
        ("", 1024, 0xE3B0C442 % 1024),
        ("abc", 12, 0xBA7816BF % 12),
        ("abc", 7, 0xBA7816BF % 7),
        ("customer-42", 12, 11),
        ("a", 3, 0xCA978112 % 3),
        ("żółw", 12, 0),
        ("🦉", 12, 5),
        ("👩‍🚀", 12, 2),
    ],
)
def test_partition_of__known_keys__stay_where_they_are(key, partitions, wanted):
    assert partition_of(key, partitions) == wanted


def test_partition_of__lone_surrogate__is_refused():
    with pytest.raises(UnicodeEncodeError):
        partition_of("\ud800", 12)


def test_partition_of__many_keys__fill_partitions_evenly():
    counts = [0] * 12
    for number in range(12_000):
        counts[partition_of(f"customer-{number}", 12)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150
