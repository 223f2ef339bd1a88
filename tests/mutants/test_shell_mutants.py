"""Rules of the core and the shells, broken one at a time: each scenario that stands for the rule fails, on each shell."""

from functools import partial

import pytest
from support.scenarios import first_run_speaks_late, stop_after_work, stop_during_work

from coordinator.consumer.aio_runtime import AsyncRuntime
from coordinator.consumer.runtime import Runtime
from coordinator.core.deliveries import Deliveries
from coordinator.core.retry import Failure


def late_nack_hits_the_next(monkeypatch):
    """Case 25: a failure is looked up by its message, and not by its delivery."""
    fail = Deliveries.fail

    def of_the_message(self, delivery, *arguments, **options):
        return fail(self, delivery.owner.in_flight.get(delivery.offset, delivery), *arguments, **options)

    monkeypatch.setattr(Deliveries, "fail", of_the_message)


def late_ack_is_lost(monkeypatch):
    """Case 25: an ack counts only before the deadline, although the work is done."""
    monkeypatch.setattr(Deliveries, "_settle_late", lambda *_: False)


def late_extension_counts(monkeypatch):
    """Case 25: extend is looked up by its message, and not by its delivery."""
    extend = Deliveries.extend

    def of_the_message(self, delivery, *arguments):
        return extend(self, delivery.owner.in_flight.get(delivery.offset, delivery), *arguments)

    monkeypatch.setattr(Deliveries, "extend", of_the_message)


def drain_forgets_acks(monkeypatch):
    """Case 27: stopping drops the claims at once, with what waits for company in the next exchange."""

    def drain(self):
        self.draining = True
        self.drop(list(self.partitions))

    monkeypatch.setattr(Deliveries, "drain", drain)


def interrupted_is_charged(monkeypatch):
    """Case 27: what the shutdown interrupts counts as failed."""

    def abandon(self, subscriptions):
        mine = [partition for partition in self.partitions.values() if partition.subscription in list(subscriptions)]
        running = [delivery for partition in mine for delivery in partition.in_flight.values()]
        for delivery in running:
            self.fail(delivery, None, Failure("stopped"), 0.0, 0.5, delay_s=0.0)
        self.revoke([partition.key for partition in mine])
        return len(running)

    monkeypatch.setattr(Deliveries, "abandon", abandon)
    for runtime in (Runtime, AsyncRuntime):
        monkeypatch.setattr(
            runtime, "give_back", lambda self, message, _pause_s: self.fail(message, None, Failure("stopped"))
        )


def claims_are_kept(monkeypatch):
    """Case 27: who leaves releases nothing; the lease gives it to the next."""

    async def aio_leave(self, _connection):
        pass

    monkeypatch.setattr(Deliveries, "revoke", lambda *_: None)
    monkeypatch.setattr(Runtime, "_leave", lambda *_: None)
    monkeypatch.setattr(AsyncRuntime, "_leave", aio_leave)


@pytest.mark.parametrize(
    ("mutant", "scenario"),
    [
        (late_nack_hits_the_next, partial(first_run_speaks_late, word="nack")),
        (late_nack_hits_the_next, partial(first_run_speaks_late, word="reject")),
        (late_ack_is_lost, partial(first_run_speaks_late, word="ack")),
        (late_extension_counts, partial(first_run_speaks_late, word="extend")),
        (drain_forgets_acks, stop_after_work),
        (interrupted_is_charged, stop_during_work),
        (claims_are_kept, stop_during_work),
    ],
)
def test_mutant__of_core_or_shell__fails_its_scenario(make_shell, dsn, monkeypatch, mutant, scenario):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        scenario(make_shell, dsn)
