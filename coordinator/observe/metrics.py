"""Names of metrics, their labels and what they mean, in one place; docs/metrics.md is checked against it.

Labels are topic, group and partition, and enumerations that are closed here: never an offset, a key or a member id, so the
number of series is bounded by the number of partitions and groups.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]

# Seconds: from what an idle handler takes to the visibility timeout and some.
DURATION_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Seconds between a publish and its hand-over: a group may be behind by an hour.
LATENCY_BOUNDS: Final = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3600.0)
SIZE_BOUNDS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)

OUTCOMES: Final = ("acked", "retried", "dead_lettered")
REDELIVERY_REASONS: Final = ("failure", "deadline", "crash", "replay", "given_back")
DEAD_LETTER_REASONS: Final = ("attempts", "crash", "rejected")
WAKE_UP_SOURCES: Final = ("notify", "poll")
# By the first two characters of a SQLSTATE; an error without one is libpq's: refused, reset, timed out.
ERROR_CLASSES: Final = ("connection", "transaction", "resources", "operator", "protocol", "other")


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric.

    Attributes:
        database: Read from the database, and exported by one process at a time; else by each process, of itself.
        values: The closed list of a label's values, where there is one.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    database: bool = False
    bounds: tuple[float, ...] = ()
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)


PUBLISHED: Final = Metric(
    "coordinator_messages_published_total",
    "counter",
    "Messages that this process has sent; in a caller's transaction, before its commit.",
    ("topic",),
)
STARTED: Final = Metric(
    "coordinator_deliveries_started_total", "counter", "Hand-overs of messages to handlers.", ("topic", "group")
)
DELIVERIES: Final = Metric(
    "coordinator_deliveries_total",
    "counter",
    "What hand-overs have come to.",
    ("topic", "group", "outcome"),
    values={"outcome": OUTCOMES},
)
REDELIVERIES: Final = Metric(
    "coordinator_redeliveries_total",
    "counter",
    "Hand-overs that were not the first of their message, by what the one before has come to.",
    ("topic", "group", "reason"),
    values={"reason": REDELIVERY_REASONS},
)
DEAD_LETTERS: Final = Metric(
    "coordinator_dead_letters_total",
    "counter",
    "Messages that became dead letters, by reason.",
    ("topic", "group", "reason"),
    values={"reason": DEAD_LETTER_REASONS},
)
STALE: Final = Metric(
    "coordinator_stale_acks_total",
    "counter",
    "Acks, nacks and extensions that were refused, because the partition is somebody else's by now.",
    ("topic", "group"),
)
HANDLER_DURATION: Final = Metric(
    "coordinator_handler_duration_seconds",
    "histogram",
    "How long calls of handlers took, whatever came of them; a sample, at most a hundred a second by each worker.",
    ("topic", "group"),
    bounds=DURATION_BOUNDS,
)
DELIVERY_LATENCY: Final = Metric(
    "coordinator_delivery_latency_seconds",
    "histogram",
    "From a message's publish to its hand-over, by the server's clock; a sample, at most a hundred a second.",
    ("topic", "group"),
    bounds=LATENCY_BOUNDS,
)
READY: Final = Metric(
    "coordinator_ready_messages", "gauge", "Messages in memory that are not started.", ("topic", "group")
)
IN_FLIGHT: Final = Metric(
    "coordinator_in_flight_messages", "gauge", "Messages handed over and not settled.", ("topic", "group")
)
IN_FLIGHT_LIMIT: Final = Metric(
    "coordinator_in_flight_limit_messages", "gauge", "The most that this process has in flight (max_in_flight)."
)
IN_FLIGHT_BYTES: Final = Metric("coordinator_in_flight_bytes", "gauge", "Payload bytes of what is in flight.")
PARKED: Final = Metric(
    "coordinator_parked_messages",
    "gauge",
    "Messages of the partitions held that wait for a retry, behind their key, or as a replay.",
    ("topic", "group"),
)
BLOCKED_KEYS: Final = Metric(
    "coordinator_blocked_keys",
    "gauge",
    "Keys that a parked message blocks, of the partitions held.",
    ("topic", "group"),
)
PARTITIONS: Final = Metric(
    "coordinator_partitions_owned", "gauge", "Partitions that this process holds.", ("topic", "group")
)
REBALANCES: Final = Metric(
    "coordinator_rebalances_total",
    "counter",
    "Looks at the membership after which this process has taken, lost or begun to give up partitions.",
    ("group",),
)
LEASE_LOSSES: Final = Metric(
    "coordinator_lease_losses_total", "counter", "How often this process was declared dead while it was alive."
)
LEASE_LEFT: Final = Metric(
    "coordinator_lease_left_seconds",
    "gauge",
    "Until this process stops to hand messages over, unless a heartbeat is answered before; below 0 it has stopped.",
)
LISTENER: Final = Metric(
    "coordinator_listener_connected", "gauge", "1 while LISTEN is in force, 0 while it should be and is not."
)
WAKE_UPS: Final = Metric(
    "coordinator_wakeups_total",
    "counter",
    "Looks for messages, by what they came from.",
    ("source",),
    values={"source": WAKE_UP_SOURCES},
)
EXCHANGE_DURATION: Final = Metric(
    "coordinator_exchange_duration_seconds",
    "histogram",
    "Round trips that settle and fetch.",
    bounds=DURATION_BOUNDS,
)
EXCHANGE_SIZE: Final = Metric(
    "coordinator_exchange_size_messages",
    "histogram",
    "Messages that an exchange has settled and brought.",
    bounds=SIZE_BOUNDS,
)
DATABASE_ERRORS: Final = Metric(
    "coordinator_database_errors_total",
    "counter",
    "Errors of the database, or of the way there, by class.",
    ("class",),
    values={"class": ERROR_CLASSES},
)
CLOCK_SKEW: Final = Metric(
    "coordinator_clock_skew_seconds",
    "gauge",
    "The server's clock less this machine's, give or take half a round trip; nothing here depends on it.",
)
MAINTENANCE: Final = Metric(
    "coordinator_maintenance_last_success_timestamp_seconds",
    "gauge",
    "When a task of maintenance last went well, whoever did it.",
    ("task",),
    database=True,
)
EXPORTER: Final = Metric(
    "coordinator_database_gauges_exporter",
    "gauge",
    "1 if this process is the one that exports the gauges of the database.",
)
GAUGES_AGE: Final = Metric(
    "coordinator_database_gauges_age_seconds", "gauge", "How old the gauges of the database are that follow."
)
GAUGES_DURATION: Final = Metric(
    "coordinator_database_gauges_duration_seconds", "gauge", "How long reading the gauges of the database took."
)

LAG: Final = Metric(
    "coordinator_group_lag",
    "gauge",
    "Messages that a group has not settled: an upper bound, by offsets that are not yet proven burnt.",
    ("group", "topic", "partition"),
    database=True,
)
LAG_SECONDS: Final = Metric(
    "coordinator_group_lag_seconds",
    "gauge",
    "Age of the first message above the committed offset; 0 where everything is settled.",
    ("group", "topic", "partition"),
    database=True,
)
OLDEST_UNACKED: Final = Metric(
    "coordinator_group_oldest_unacked_age_seconds",
    "gauge",
    "Age of the oldest message that is not settled, parked ones included.",
    ("group", "topic"),
    database=True,
)
GROUP_PARKED: Final = Metric(
    "coordinator_group_parked_messages",
    "gauge",
    "Messages that wait in the retries table.",
    ("group", "topic"),
    database=True,
)
GROUP_DEAD_LETTERS: Final = Metric(
    "coordinator_group_dead_letters", "gauge", "Dead letters that a group has.", ("group",), database=True
)
GROUP_MEMBERS: Final = Metric(
    "coordinator_group_members", "gauge", "Members whose lease runs.", ("group",), database=True
)
UNOWNED: Final = Metric(
    "coordinator_group_unowned_partitions",
    "gauge",
    "Partitions that nobody alive holds.",
    ("group", "topic"),
    database=True,
)
LOG_END: Final = Metric(
    "coordinator_topic_log_end_offset",
    "gauge",
    "The next offset to be handed out; its rate is that of publishing, by whomever.",
    ("topic", "partition"),
    database=True,
)
SEGMENTS: Final = Metric("coordinator_topic_segments", "gauge", "Segments that a topic has.", ("topic",), database=True)
TOPIC_BYTES: Final = Metric(
    "coordinator_topic_bytes", "gauge", "Disk space of a topic's segments, indexes included.", ("topic",), database=True
)
SKIPPED: Final = Metric(
    "coordinator_group_skipped_offsets_total",
    "counter",
    "Offsets that retention has made a group pass without settling them.",
    ("group",),
    database=True,
)
DEAD_TUPLES: Final = Metric(
    "coordinator_table_dead_tuples",
    "gauge",
    "Dead rows that vacuum has not removed, as the statistics know them.",
    ("table",),
    database=True,
)
SNAPSHOT_AGE: Final = Metric(
    "coordinator_oldest_snapshot_age_seconds",
    "gauge",
    "Age of the oldest transaction of the server that keeps vacuum from removing rows, as far as this role may see.",
    database=True,
)

METRICS: Final = (
    PUBLISHED,
    STARTED,
    DELIVERIES,
    REDELIVERIES,
    DEAD_LETTERS,
    STALE,
    HANDLER_DURATION,
    DELIVERY_LATENCY,
    READY,
    IN_FLIGHT,
    IN_FLIGHT_LIMIT,
    IN_FLIGHT_BYTES,
    PARKED,
    BLOCKED_KEYS,
    PARTITIONS,
    REBALANCES,
    LEASE_LOSSES,
    LEASE_LEFT,
    LISTENER,
    WAKE_UPS,
    EXCHANGE_DURATION,
    EXCHANGE_SIZE,
    DATABASE_ERRORS,
    CLOCK_SKEW,
    EXPORTER,
    GAUGES_AGE,
    GAUGES_DURATION,
    LAG,
    LAG_SECONDS,
    OLDEST_UNACKED,
    GROUP_PARKED,
    GROUP_DEAD_LETTERS,
    GROUP_MEMBERS,
    UNOWNED,
    SKIPPED,
    LOG_END,
    SEGMENTS,
    TOPIC_BYTES,
    DEAD_TUPLES,
    SNAPSHOT_AGE,
    MAINTENANCE,
)
