create or replace function coordinator.partition_of(p_key text, p_partitions int) returns int
language sql immutable strict parallel safe
as $$
    -- Partition of a key: the first four bytes of SHA-256 of its UTF-8 form, big endian, modulo the count.
    -- The same as partition_of in the Python package; both are pinned by test vectors.
    select ((get_byte(h.digest, 0)::bigint << 24 | get_byte(h.digest, 1)::bigint << 16
           | get_byte(h.digest, 2)::bigint << 8 | get_byte(h.digest, 3)::bigint) % p_partitions)::int
    from (select sha256(convert_to(p_key, 'UTF8')) as digest offset 0) h
$$;
