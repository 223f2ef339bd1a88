"""Case 8: many processes claim few partitions while they are killed, frozen and cut off, again and again.

COORDINATOR_TEST_SEED repeats a run; at full size it is 20 processes and 200 faults.
"""

import contextlib
import os
import random
import time

import pytest
from support.processes import Process, Task
from support.shell import GROUP, TOPIC, query, short, wait_until
from support.sizes import FULL

from coordinator import Coordinator

PROCESSES, FAULTS = (20, 200) if FULL else (6, 10)
PARTITIONS = 8
LEASE_S = 2.0
SETTINGS = {
    "lease_s": LEASE_S,
    "heartbeat_s": 0.4,
    "self_fence_margin_s": 0.4,
    "membership_poll_s": 0.3,
    "rebalance_debounce_s": 0.1,
}
# No epoch may ever have a second owner: the key refuses it, and with it the claim.
WITNESS = """
create table public.owned (partition int, epoch bigint, owner uuid, primary key (partition, epoch));
create table public.doubles (partition int, epoch bigint, owner uuid);
create function public.note_owner() returns trigger language plpgsql as $$
begin
    insert into public.owned values (new.partition, new.epoch, new.owner) on conflict do nothing;
    if exists (select from public.owned o
               where o.partition = new.partition and o.epoch = new.epoch and o.owner <> new.owner) then
        insert into public.doubles values (new.partition, new.epoch, new.owner);
    end if;
    return null;
end
$$;
create trigger note_owner after update on coordinator.claims
    for each row when (new.owner is not null) execute function public.note_owner();
"""
UNOWNED = """
select c.partition from coordinator.claims c
left join coordinator.coordinators o
  on o.coordinator = c.owner and o.state <> 'dead' and o.lease_until >= clock_timestamp()
where o.coordinator is null
"""


class Orphans:
    """For how long a partition was without an owner whose lease runs, at most, as far as anybody has looked."""

    def __init__(self, dsn):
        self._dsn = dsn
        self._since_s = {}
        self.longest_s = 0.0

    def look(self):
        now_s = time.monotonic()
        free = {partition for (partition,) in query(self._dsn, UNOWNED)}
        self._since_s = {partition: self._since_s.get(partition, now_s) for partition in free}
        self.longest_s = max([self.longest_s, *(now_s - since_s for since_s in self._since_s.values())])

    def watch(self, duration_s):
        until_s = time.monotonic() + duration_s
        while time.monotonic() < until_s:
            self.look()
            time.sleep(0.05)


@pytest.mark.slow
def test_claims__processes_are_killed_frozen_and_cut_off__one_owner_per_epoch_and_all_owned_in_the_end(dsn, tmp_path):
    seed = int(os.environ.get("COORDINATOR_TEST_SEED", "0")) or random.randrange(10**6)
    print(f"COORDINATOR_TEST_SEED={seed}")
    chance = random.Random(seed)
    with Coordinator(dsn, settings=short()) as app, contextlib.ExitStack() as stack:
        app.create_topic(TOPIC, PARTITIONS)
        query(dsn, WITNESS)
        names = iter(range(10**6))

        def start():
            task = Task(dsn, TOPIC, GROUP, f"p{next(names)}", settings=SETTINGS)
            return stack.enter_context(Process(task, tmp_path))

        processes = [start() for _ in range(PROCESSES)]
        wait_until(lambda: query(dsn, "select count(*) from coordinator.members") == [(PROCESSES,)], 120)
        orphans = Orphans(dsn)
        for _ in range(FAULTS):
            place = chance.randrange(PROCESSES)
            match chance.choice(["kill", "stop", "terminate"]):
                case "kill":
                    processes[place].kill()
                    processes[place] = start()
                case "stop":
                    processes[place].freeze()
                    orphans.watch(chance.uniform(0.5, 2 * LEASE_S))
                    processes[place].thaw()
                case "terminate":
                    # Any session of ours, the probing and publishing ones of this test apart.
                    query(
                        dsn,
                        "select pg_terminate_backend(a.pid) from pg_stat_activity a where a.datname = current_database() "
                        # Behind a pooler our own may bear the name of whoever had it before.
                        "and a.application_name ~ '^coordinator (work|control) p' and a.pid <> pg_backend_pid() "
                        "order by random() limit 1",
                    )
            orphans.watch(chance.uniform(0.0, 1.0))

        def balanced():
            orphans.look()
            rows = query(
                dsn,
                "select count(k.partition) from coordinator.members m join coordinator.coordinators c "
                "on c.coordinator = m.coordinator and c.state = 'alive' and c.lease_until > clock_timestamp() "
                "left join coordinator.claims k on k.owner = m.coordinator group by m.coordinator",
            )
            counts = [count for (count,) in rows]
            return len(counts) == PROCESSES and sum(counts) == PARTITIONS and max(counts) - min(counts) <= 1

        wait_until(balanced, 120)
        assert query(dsn, "select * from public.doubles") == []
        assert query(dsn, "select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]
        print(f"longest without an owner {orphans.longest_s:.1f} s")
        # A lease and a poll; the rest is this machine's, on which all of these processes are one of several suites.
        assert orphans.longest_s < LEASE_S + 0.3 + 25
        assert all(process.running for process in processes)

        def still():
            before = query(dsn, "select partition, epoch from coordinator.claims order by partition")
            orphans.watch(2.0)
            return query(dsn, "select partition, epoch from coordinator.claims order by partition") == before

        # One that was judged dead on a busy machine joins again, and gets its share back.
        wait_until(still, 60)
