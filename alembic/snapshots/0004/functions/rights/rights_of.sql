create or replace function coordinator.rights_of(p_kind text) returns text[]
language sql immutable
as $$
    -- The functions that a kind of role may call, all of that name: publisher, consumer, reader, operator. What none of them
    -- has is called by other functions only, or by the owner. Functions that views call are checked for who reads the view.
    -- An operator has all of them. It doesn't call itself for that: before 18 the planner would inline it for ever.
    select array_agg(distinct u.name)
    from (values
        ('publisher', array[
            'protocol_version', 'limit_session', 'now_', 'describe_topics', 'max_message_bytes', 'partition_of', 'publish',
            'publish_bytes', 'publish_many', 'transaction_outcome', 'history']),
        ('consumer', array[
            'protocol_version', 'limit_session', 'now_', 'describe_topics', 'max_message_bytes', 'transaction_outcome', 'history',
            'register', 'heartbeat', 'hold_session', 'lost_sessions', 'join_group', 'rejoin_group', 'leave', 'give_up', 'claim', 'exchange',
            'dispatch_due', 'fetch', 'fetch_retries', 'gap_pass', 'resolve', 'release', 'ack', 'ack_kept', 'group_state', 'store_plan',
            'reap', 'withdraw_charge', 'peek', 'maintain_publishing', 'rotate_due', 'skip_expired', 'retire_segments',
            'drop_retired', 'sweep', 'fail_task', 'stuck_claims', 'probe_claim', 'blockers_of', 'end_blockers']),
        ('reader', array[
            'protocol_version', 'limit_session', 'now_', 'describe_topics', 'max_message_bytes', 'multirange_size', 'high_offset',
            'log_start', 'offset_at', 'lost_sessions', 'history', 'oldest_unsettled', 'dead_letter_stats',
            'dead_letter_totals', 'group_state', 'group_gauges', 'group_totals', 'server_gauges', 'take_export_turn',
            'end_export_turn', 'examine_groups', 'examine_partitions', 'examine_publishers', 'examine_segments', 'examine_upkeep']),
        ('operator', array[
            'create_topic', 'alter_topic', 'add_partitions', 'delete_topic', 'drop_remains', 'add_segment', 'open_segment', 'detach_command',
            'set_topic_rights', 'pause', 'resume', 'hold', 'let_go', 'seek', 'skip', 'delete_group', 'set_group_expiry', 'drain',
            'evict', 'replay', 'purge', 'select_dead_letters', 'set_max_dead_letters', 'trim_dead_letters', 'show_messages',
            'decode_json', 'message_states', 'cancel_scheduled', 'move_due', 'expire_dedup', 'group_id_of', 'raise_dead'])) as r(kind, names)
    cross join unnest(r.names) as u(name)
    where p_kind in (r.kind, 'operator')
$$;
