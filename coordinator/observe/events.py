"""Log event names: `<noun>.<past verb>`, constant; everything else goes into fields."""

CONNECTION_LOST = "connection.lost"
CONNECTION_RESTORED = "connection.restored"
# The database goes on with another history: a standby was promoted, or a backup restored. It may lack the last commits.
HISTORY_CHANGED = "history.changed"
# LISTEN hears nothing, on a session that is well otherwise: only polling wakes consumers.
LISTENER_DEAF = "listener.deaf"
LISTENER_RESTORED = "listener.restored"
# What the DSN leads to is no server but a pooler, which may lend each transaction another session.
POOLER_FOUND = "pooler.found"
MEMBER_JOINED = "member.joined"
MEMBER_FENCED = "member.fenced"
MEMBER_LEFT = "member.left"
MEMBER_DIED = "member.died"
MEMBER_REPLACED = "member.replaced"
GROUP_PLANNED = "group.planned"
PARTITION_ASSIGNED = "partition.assigned"
PARTITION_REVOKED = "partition.revoked"
# Nobody alive owns it, and somebody holds its row: the fields name who.
CLAIM_BLOCKED = "claim.blocked"
BLOCKER_ENDED = "blocker.ended"
PARTITION_FORCED = "partition.forced"
PARTITION_LOST = "partition.lost"
PARTITION_RELEASED = "partition.released"
DEADLINE_PASSED = "deadline.passed"
DELIVERY_NACKED = "delivery.nacked"
DELIVERY_DEAD_LETTERED = "delivery.dead_lettered"
DEAD_LETTER_REFUSED = "dead_letter.refused"
DEAD_LETTERS_DROPPED = "dead_letters.dropped"
HANDLER_SLOW = "handler.slow"
HOOK_FAILED = "hook.failed"
HANDLER_FAILED = "handler.failed"
# A stop did not wait for them any longer; what they had is given back.
HANDLERS_LEFT = "handlers.left"
# A background loop was ended by an error, and begins again with nothing remembered.
LOOP_RESTARTED = "loop.restarted"
LOOP_FAILED = "loop.failed"
# It lives and does not come round: no heartbeat is sent for it any more.
LOOP_HUNG = "loop.hung"
EXCHANGE_FAILED = "exchange.failed"
ACK_REFUSED = "ack.refused"
# Cancelled: what it had is given back, and is no failure.
HANDLER_INTERRUPTED = "handler.interrupted"
# Something did not let the event loop go on: no heartbeat, no deadline moved, no message handed over meanwhile.
HANDLER_BLOCKED_LOOP = "handler.blocked_loop"
MAINTENANCE_FAILED = "maintenance.failed"
# The gauges of the database could not be read.
GAUGES_DENIED = "gauges.denied"
GAUGES_FAILED = "gauges.failed"
PAGE_FAILED = "page.failed"
SERVING_STARTED = "serving.started"
# What an application reads, told when it starts.
GROUP_SUBSCRIBED = "group.subscribed"
MOVE_FAILED = "move.failed"
# Retention has made a group pass messages that it had not settled.
MESSAGES_SKIPPED = "messages.skipped"
SEGMENT_RETIRED = "segment.retired"
SEGMENT_DROPPED = "segment.dropped"
# A retired segment can't be dropped: somebody holds a lock on its topic.
SEGMENT_BLOCKED = "segment.blocked"
GROUP_EXPIRED = "group.expired"
# Nobody runs the group, and it keeps segments that retention would drop.
GROUP_PINNING = "group.pinning"
