create or replace function coordinator.partition_of(p_key text, p_partitions int) returns int
language sql stable strict parallel safe
as $$
    -- Partition of a key: the first four bytes of SHA-256 of its UTF-8 form, big endian, modulo the count.
    -- The same as partition_of in the Python package; both are pinned by test vectors.
    -- STABLE, as convert_to is: declared IMMUTABLE it would not be inlined, at three times the cost.
    select (('x' || encode(substring(sha256(convert_to(p_key, 'UTF8')) for 4), 'hex'))::bit(32)::bigint % p_partitions)::int
$$;
