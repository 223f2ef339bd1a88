"""Which partition a key belongs to: the same in SQL (coordinator.partition_of) and here, pinned by test vectors."""

import hashlib


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key: the first four bytes of SHA-256 of its UTF-8 form, big endian, modulo the count.

    Raises:
        UnicodeEncodeError: If the key holds lone surrogates.
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % partitions
