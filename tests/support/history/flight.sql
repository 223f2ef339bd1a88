-- The flight recorder of the tests: triggers that keep, in the transaction that makes it, every change of the state of
-- groups. What is here was committed; nothing that was rolled back is. The schema's own functions are left as they are.
create schema history;

create table history.progress (
    n bigserial primary key, group_id int, topic_id int, partition int, seq bigint, epoch bigint, committed bigint, hwm bigint,
    done int8multirange, owner uuid, claim_epoch bigint, resets int, at timestamptz default clock_timestamp(),
    xid xid8 default pg_current_xact_id(), application text default current_setting('application_name'));
create table history.claims (
    n bigserial primary key, group_id int, topic_id int, partition int, owner uuid, epoch bigint, resets int,
    at timestamptz default clock_timestamp(), xid xid8 default pg_current_xact_id());
create table history.retries (
    n bigserial primary key, op text, group_id int, topic_id int, partition int, "offset" bigint, fails int, crashes int,
    next_at timestamptz, behind_key boolean, dispatched_epoch bigint, was_dispatched_epoch bigint, replays int,
    at timestamptz default clock_timestamp(), xid xid8 default pg_current_xact_id());
create table history.acks (
    n bigserial primary key, group_id int, topic_id int, partition int, "offset" bigint, replay int, epoch bigint,
    claim_epoch bigint, at timestamptz default clock_timestamp(), xid xid8 default pg_current_xact_id());
create table history.dead_letters (
    n bigserial primary key, op text, group_id int, topic_id int, partition int, "offset" bigint, reason text,
    at timestamptz default clock_timestamp(), xid xid8 default pg_current_xact_id());
create table history.crashes (
    n bigserial primary key, op text, group_id int, topic_id int, partition int, epoch bigint, coordinator uuid,
    offsets int8multirange, alone boolean, at timestamptz default clock_timestamp(), xid xid8 default pg_current_xact_id());
create table history.coordinators (
    n bigserial primary key, coordinator uuid, client_id text, state text,
    at timestamptz default clock_timestamp(), xid xid8 default pg_current_xact_id());

create function history.on_progress() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
    insert into history.progress (group_id, topic_id, partition, seq, epoch, committed, hwm, done, owner, claim_epoch, resets)
    select i.group_id, i.topic_id, i.partition, i.seq, i.epoch, i.committed, i.hwm, i.done, c.owner, c.epoch, c.resets
    from added i left join coordinator.claims c using (group_id, topic_id, partition);
    return null;
end $$;
create trigger flight after insert on coordinator.progress referencing new table as added
    for each statement execute function history.on_progress();

create function history.on_claims() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
    insert into history.claims (group_id, topic_id, partition, owner, epoch, resets)
    select a.group_id, a.topic_id, a.partition, a.owner, a.epoch, a.resets from added a;
    return null;
end $$;
create trigger flight_insert after insert on coordinator.claims referencing new table as added
    for each statement execute function history.on_claims();
create trigger flight_update after update on coordinator.claims referencing new table as added
    for each statement execute function history.on_claims();

create function history.on_retries() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
    if tg_op = 'DELETE' then
        insert into history.retries (op, group_id, topic_id, partition, "offset", fails, crashes, replays)
        values ('delete', old.group_id, old.topic_id, old.partition, old."offset", old.fails, old.crashes, old.replays);
    else
        insert into history.retries (op, group_id, topic_id, partition, "offset", fails, crashes, next_at, behind_key,
                                     dispatched_epoch, was_dispatched_epoch, replays)
        values (lower(tg_op), new.group_id, new.topic_id, new.partition, new."offset", new.fails, new.crashes, new.next_at,
                new.behind_key, new.dispatched_epoch, case when tg_op = 'UPDATE' then old.dispatched_epoch end, new.replays);
    end if;
    return null;
end $$;
create trigger flight after insert or update or delete on coordinator.retries
    for each row execute function history.on_retries();

create function history.on_acks() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
    insert into history.acks (group_id, topic_id, partition, "offset", replay, epoch, claim_epoch)
    select i.group_id, i.topic_id, i.partition, i."offset", i.replay, i.epoch, c.epoch
    from added i left join coordinator.claims c using (group_id, topic_id, partition);
    return null;
end $$;
create trigger flight after insert on coordinator.acks referencing new table as added
    for each statement execute function history.on_acks();

create function history.on_dead_letters() returns trigger language plpgsql set search_path = pg_catalog as $$
declare v_row coordinator.dead_letters := case when tg_op = 'DELETE' then old else new end;
begin
    insert into history.dead_letters (op, group_id, topic_id, partition, "offset", reason)
    values (lower(tg_op), v_row.group_id, v_row.topic_id, v_row.partition, v_row."offset", v_row.reason);
    return null;
end $$;
create trigger flight after insert or update or delete on coordinator.dead_letters
    for each row execute function history.on_dead_letters();

create function history.on_crashes() returns trigger language plpgsql set search_path = pg_catalog as $$
declare v_row coordinator.crashes := case when tg_op = 'DELETE' then old else new end;
begin
    insert into history.crashes (op, group_id, topic_id, partition, epoch, coordinator, offsets, alone)
    values (lower(tg_op), v_row.group_id, v_row.topic_id, v_row.partition, v_row.epoch, v_row.coordinator, v_row.offsets, v_row.alone);
    return null;
end $$;
create trigger flight after insert or update or delete on coordinator.crashes
    for each row execute function history.on_crashes();

create function history.on_coordinators() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
    if tg_op = 'DELETE' then
        insert into history.coordinators (coordinator, client_id, state) values (old.coordinator, old.client_id, 'gone');
    elsif tg_op = 'INSERT' or new.state <> old.state then
        insert into history.coordinators (coordinator, client_id, state) values (new.coordinator, new.client_id, new.state);
    end if;
    return null;
end $$;
create trigger flight after insert or update of state or delete on coordinator.coordinators
    for each row execute function history.on_coordinators();

-- What transactional handlers write; no key, so that a second effect can be seen.
create table history.effects ("group" text, topic text, partition int, "offset" bigint, value text);
