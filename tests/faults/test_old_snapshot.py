"""Somebody's old snapshot keeps every row that is gone: no exchange may read all of those, again and again."""

import threading

import psycopg
from support.shell import GROUP, TOPIC, query, short, wait_until

from coordinator import Coordinator, Outgoing

GONE = 200_000
COUNT = 8_000


def test_transactional_group__a_snapshot_keeps_its_acks__goes_on(dsn):
    """Mutant: each ack's row is taken away by a statement of its own, which looks at all rows of the partition: no exchange ends."""
    handled, release = [], threading.Event()

    def handle(messages, _connection):
        handled.extend(messages)
        if len(handled) > COUNT // 2:
            assert release.wait(60)

    with Coordinator(dsn, settings=short(visibility_timeout_s=60.0)) as app:
        app.create_topic(TOPIC, 2)
        app.publish_many(TOPIC, [Outgoing(number) for number in range(COUNT)])
        app.subscribe(
            TOPIC, group=GROUP, ordering="none", transactional=True, batch_size=50, concurrency=3, start="earliest"
        )(handle)
        running = threading.Thread(target=app.run, kwargs={"install_signal_handlers": False})
        running.start()
        try:
            # What is run often has its plan by then, made for a small table.
            wait_until(lambda: len(handled) > COUNT // 2, 60)
            with psycopg.connect(dsn) as holder:
                holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                holder.execute("select count(*) from coordinator.acks")
                query(
                    dsn,
                    'insert into coordinator.acks (group_id, topic_id, partition, "offset", replay, epoch) '
                    "select 1, 1, g %% 2, -g, 0, 1 from generate_series(1, %s) g",
                    GONE,
                )
                query(dsn, 'delete from coordinator.acks a where a."offset" < 0')
                release.set()
                settled = "select count(*) = 2 and sum(o.lag) = 0 from coordinator.offsets o"
                wait_until(lambda: query(dsn, settled) == [(True,)], 60, "everything is settled")
        finally:
            release.set()
            app.stop()
            running.join(60)
