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
# The embedded server is about to do what takes a while, the first time: the field step says what.
EMBEDDED_STEP_BEGUN = "embedded.step_begun"
MEMBER_JOINED = "member.joined"
MEMBER_FENCED = "member.fenced"
MEMBER_LEFT = "member.left"
MEMBER_DIED = "member.died"
MEMBER_REPLACED = "member.replaced"
GROUP_PLANNED = "group.planned"
# Somebody has deleted what this process reads; the rest of it goes on.
GROUP_DELETED = "group.deleted"
TOPIC_DELETED = "topic.deleted"
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
SERVING_STOPPED = "serving.stopped"
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

# What each means, in a few words: a person who meets the name alone must not have to look it up.
MEANINGS = {
    CONNECTION_LOST: "no connection to the database; it is tried again until there is one",
    CONNECTION_RESTORED: "the database answers again",
    HISTORY_CHANGED: "the database goes on with another history (failover or restore); partitions are claimed anew",
    LISTENER_DEAF: "notifications do not arrive; consumers find messages by polling alone",
    LISTENER_RESTORED: "notifications arrive again",
    POOLER_FOUND: "the DSN leads to a pooler",
    EMBEDDED_STEP_BEGUN: "the embedded server is made ready for its first start, which may take half a minute",
    MEMBER_JOINED: "this process takes part in the group",
    MEMBER_FENCED: "this process was declared dead; it drops what it had and joins again",
    MEMBER_LEFT: "this process has left its groups and given its partitions back",
    MEMBER_DIED: "a process ended, or was cut off, without leaving; others take its partitions",
    MEMBER_REPLACED: "another process has started with this one's static id; this one ends",
    GROUP_PLANNED: "this process has stored who gets which partition",
    GROUP_DELETED: "somebody has deleted the group; what else this process reads goes on",
    TOPIC_DELETED: "somebody has deleted the topic; what else this process reads goes on",
    PARTITION_ASSIGNED: "this process owns the partition now",
    PARTITION_REVOKED: "the partition is meant for another process",
    CLAIM_BLOCKED: "nobody alive owns the partition, and a database session holds a lock on its row",
    BLOCKER_ENDED: "a database session that held a claim was ended",
    PARTITION_FORCED: "its owner did not hand the partition over in time; it was taken",
    PARTITION_LOST: "another process owns the partition; what was running here does not count",
    PARTITION_RELEASED: "the partition was given back",
    DEADLINE_PASSED: "the handler took longer than the visibility timeout; the message is taken back",
    DELIVERY_NACKED: "the message has failed: it is delivered again after delay_s, or is a dead letter where a reason is given",
    DELIVERY_DEAD_LETTERED: "the message is given up, and kept in the dead letters",
    DEAD_LETTER_REFUSED: "the database refuses to store a dead letter; its partition waits, and it is tried again",
    DEAD_LETTERS_DROPPED: "there were more dead letters than their bound, or too old ones; they are gone",
    HANDLER_SLOW: "a handler runs longer than the visibility timeout; its deadline is moved on",
    HOOK_FAILED: "on_dead_letter has raised an exception; the dead letter is stored",
    HANDLER_FAILED: "the handler has raised an exception",
    HANDLERS_LEFT: "handlers were still running at the end of drain_timeout_s; their messages are delivered again",
    LOOP_RESTARTED: "a background loop was ended by an error and begins again",
    LOOP_FAILED: "a background loop was ended by an error again and again; this process does no more",
    LOOP_HUNG: "a background loop does not come round; this process will lose its lease",
    EXCHANGE_FAILED: "acks could not be written or messages not be read; it is tried again",
    ACK_REFUSED: "what the handler said of the message does not count any more",
    HANDLER_INTERRUPTED: "the handler was cancelled; the message is delivered again, and not charged",
    HANDLER_BLOCKED_LOOP: "something kept the event loop from running; is there a blocking call in a coroutine?",
    MAINTENANCE_FAILED: "a task of maintenance has failed; it is tried again",
    GAUGES_DENIED: "this role may not read some of the database's metrics, or none; they are not served from here",
    GAUGES_FAILED: "the database's metrics could not be read",
    PAGE_FAILED: "a page of the HTTP server has failed",
    SERVING_STARTED: "metrics and health are served over HTTP",
    SERVING_STOPPED: "nothing is served any more",
    GROUP_SUBSCRIBED: "what this application reads",
    MOVE_FAILED: "scheduled messages could not be published",
    MESSAGES_SKIPPED: "retention has dropped messages that the group had not settled",
    SEGMENT_RETIRED: "messages past their retention are being dropped",
    SEGMENT_DROPPED: "messages past their retention are dropped",
    SEGMENT_BLOCKED: "messages past their retention can not be dropped yet: somebody holds a lock",
    GROUP_EXPIRED: "nobody has used the group for longer than it may be unused; its policy was applied",
    GROUP_PINNING: "nobody runs the group, and messages are kept for it",
}
