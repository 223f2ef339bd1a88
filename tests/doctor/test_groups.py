"""Groups that nobody reads for, owners that settle nothing, blocked keys, dead letters: by the public interface."""

import psycopg
from support.shell import wait_until

from coordinator import Coordinator, Reject, Settings
from coordinator.doctor import Limits


def join(app, group="billing"):
    with app.consumer("orders", group=group) as consumer:
        consumer.poll(timeout_s=0.1)


def test_group__without_members_and_behind__is_found_with_what_it_pins(app, find, ordinary):
    join(app)
    app.publish("orders", 1)
    app.rotate("orders")
    for at in ({}, {"at": ordinary}):
        (finding,) = find("unused-groups", **at)
        assert finding.subject == "billing on orders"
        assert "1 messages" in finding.found
        assert "segments 1 to 1" in finding.found
    with app.consumer("orders", group="billing") as consumer:
        assert find("unused-groups") == [] or consumer.poll(timeout_s=10)


def test_group__without_members_and_nothing_to_do__is_no_finding(app, find):
    join(app)
    assert find("unused-groups") == []


def test_owner__holds_a_message_and_settles_nothing__is_found(app, find):
    app.publish("orders", 1, partition=0)
    with app.consumer("orders", group="billing") as consumer:
        (message,) = wait_until(lambda: consumer.poll(timeout_s=5), 30)
        (finding,) = find("stuck")
        assert finding.subject == "billing on orders"
        message.ack(wait=True)
        assert find("stuck") == []


def test_key__blocked_by_a_failing_message__is_found(dsn, app, find):
    with Coordinator(dsn, settings=Settings(prefetch=4)) as reader:
        for number in range(20):
            app.publish("orders", number, key="ada")
        with reader.consumer("orders", group="billing", retry=[3600.0]) as consumer:
            for message in wait_until(lambda: consumer.poll(max_messages=1, timeout_s=5), 30):
                message.nack()
            (finding,) = wait_until(lambda: (consumer.poll(timeout_s=0.05), find("blocked-keys"))[1], 30)
    assert finding.subject == "billing on orders"


def test_dead_letters__near_their_bound__are_found(app, find, connection):
    for number in range(3):
        app.publish("orders", number)

    @app.subscribe("orders", group="billing")
    def refuse(message):
        seen.append(message.offset)
        if len(seen) == 3:
            app.stop()
        raise Reject("no")

    seen = []
    app.run(install_signal_handlers=False)
    assert find("dead-letters") == []
    connection.execute("select coordinator.set_max_dead_letters('billing', 3)")
    (finding,) = find("dead-letters")
    assert finding.subject == "billing"
    app.dead_letters("billing").purge()
    assert find("dead-letters") == []


def test_claim__of_nobody_and_its_row_held__names_who_holds_it(app, find, dsn, ordinary):
    join(app)
    assert find("locked-claims") == []
    with psycopg.connect(dsn, application_name="migration of somebody") as other:
        other.execute("select from coordinator.claims where partition = 1 for update")
        ((pid,),) = other.execute("select pg_backend_pid()").fetchall()
        for at in ({}, {"at": ordinary}):
            (finding,) = wait_until(
                lambda at=at: [f for f in find("locked-claims", **at) if "doctor" not in f.found], 30
            )
            assert (finding.subject, finding.severity) == ("billing on orders/1", "error")
            assert f"pid {pid}" in finding.found
        wait_until(lambda: "migration of somebody" in find("locked-claims")[0].found, 30)
        assert find("locked-claims", limits=Limits()) == []
    assert find("locked-claims") == []
