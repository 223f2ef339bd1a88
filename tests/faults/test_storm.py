"""The short form of scripts/faults: real processes, each kind of fault, a random seed; then every invariant is checked.

COORDINATOR_TEST_SEED repeats a run.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.history.schedule import WEIGHTS, Fault, from_text, make, to_text
from support.history.storm import FLIGHT, Plan, Storm
from support.pgbouncer import find_pgbouncer
from support.shell import query

from coordinator import Coordinator

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_history"
DURATION_S = 35.0


@pytest.mark.slow
def test_storm__every_kind_of_fault__every_invariant_holds(tmp_path):
    seed = int(os.environ.get("COORDINATOR_TEST_SEED", "0")) or random.randrange(10**6)
    print(f"COORDINATOR_TEST_SEED={seed}")
    faults = make(seed, DURATION_S - 3.0, 4, lease_s=2.0, pause_s=3.0)
    plan = Plan(faults, tmp_path, duration_s=DURATION_S, rate=80.0, partitions=4, seed=seed)
    storm = Storm(plan, sys.stdout)
    found = storm.run()
    assert found == [], "\n".join(str(violation) for violation in found)
    # It was a storm: things started again, and something was refused or taken over.
    assert any(owned.epoch > 1 for state in storm.history.claims.values() for owned in state.owned)
    assert len(storm.history.processes) > plan.processes + 1


@pytest.mark.slow
@pytest.mark.direct("the servers are its own")
def test_storm__a_standby_without_the_last_commits_is_promoted__every_invariant_holds(tmp_path):
    """R4. What was committed in the two seconds before is gone; nothing of it may come back out of anybody's memory."""
    seed = int(os.environ.get("COORDINATOR_TEST_SEED", "0")) or random.randrange(10**6)
    print(f"COORDINATOR_TEST_SEED={seed}")
    faults = [Fault(6.0, "promote", for_s=2.0), Fault(12.0, "kill", 1), Fault(13.0, "restart")]
    plan = Plan(faults, tmp_path, duration_s=18.0, rate=80.0, partitions=4, seed=seed)
    storm = Storm(plan, sys.stdout)
    found = storm.run()
    assert found == [], "\n".join(str(violation) for violation in found)
    # Something was lost, or there was nothing to forget.
    assert any(publish.outcome == "unknown" for publish in storm.history.publishes)
    assert sum(map(len, storm.history.runs.values())) < sum(len(p.runs) for p in storm.history.processes.values())


@pytest.mark.slow
@pytest.mark.direct("the server and the pooler are its own")
@pytest.mark.skipif(find_pgbouncer() is None, reason="no pgbouncer (Debian: apt-get install pgbouncer)")
def test_storm__half_of_all_behind_a_pooler__every_invariant_holds(tmp_path):
    seed = int(os.environ.get("COORDINATOR_TEST_SEED", "0")) or random.randrange(10**6)
    print(f"COORDINATOR_TEST_SEED={seed}")
    faults = make(seed, 18.0, 4, lease_s=2.0, pause_s=2.5, kinds=("kill", "freeze", "terminate", "restart"))
    plan = Plan(faults, tmp_path, duration_s=20.0, rate=80.0, partitions=4, seed=seed, pgbouncer=True)
    found = Storm(plan, sys.stdout).run()
    assert found == [], "\n".join(str(violation) for violation in found)


def test_schedule__same_seed__is_the_same_and_can_be_printed_and_read():
    faults = make(7, 120.0, 4, lease_s=2.0)
    assert faults == make(7, 120.0, 4, lease_s=2.0)
    assert faults != make(8, 120.0, 4, lease_s=2.0)
    assert from_text(to_text(faults)) == faults
    assert {fault.kind for fault in faults} == set(WEIGHTS)


def test_schedule__spared__is_neither_killed_nor_stopped():
    faults = make(7, 600.0, 4, lease_s=2.0, spared=0)
    assert all(fault.slot != 0 for fault in faults if fault.kind in ("kill", "stop"))


@pytest.fixture
def consumed(dsn):
    """A database in which a group has read ten messages, with a flight recorder."""
    query(dsn, FLIGHT.read_text())
    with Coordinator(dsn) as app:
        app.create_topic("orders", 1)
        for number in range(10):
            app.publish("orders", {"id": f"m{number}"}, key="k")
        with app.consumer("orders", group="plain") as consumer:
            for _ in range(10):
                (message,) = consumer.poll(1, 5)
                if message.offset == 3:
                    message.reject("no")
                else:
                    message.ack()
            consumer.commit()
    return dsn


def check_history(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


BROKEN_TABLES = {
    "I1": 'insert into coordinator.retries (group_id, topic_id, partition, "offset", fails, crashes, next_at, created_at) '
    "values (1, 1, 0, 3, 1, 0, now(), now())",
    "I2": "update coordinator.progress set done = '{[2,4)}'",
    "I6": "insert into history.progress select * from (select nextval('history.progress_n_seq'), 1, 1, 0, 99, 1, 10, 10, "
    "'{}'::int8multirange, null::uuid, 2) x",
    "I7": "insert into history.progress (group_id, topic_id, partition, seq, epoch, committed, hwm, done, claim_epoch, resets) "
    "values (1, 1, 0, 99, 0, 10, 10, '{}', 0, 0)",
    "I12": "update coordinator.dead_letters set payload = 'else'",
    "I16": 'create or replace view coordinator.offsets as select g.name as "group", t.name as topic, c.partition, '
    "0::bigint as current_offset, 0::bigint as log_start_offset, 10::bigint as log_end_offset, -1::bigint as lag "
    "from coordinator.claims c join coordinator.groups g using (group_id) join coordinator.topics t using (topic_id)",
}


def test_check_history__sound_tables__says_so(consumed):
    done = check_history("--dsn", consumed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything that was checked holds" in done.stdout
    assert "not checked: no record" in done.stdout


@pytest.mark.parametrize("law", BROKEN_TABLES)
def test_check_history__broken_tables__is_named_with_exit_code_1(consumed, law):
    if law == "I16":
        query(consumed, "drop view if exists coordinator.offsets_by_group; drop view coordinator.offsets cascade")
    query(consumed, BROKEN_TABLES[law])
    done = check_history("--dsn", consumed, "--only", law)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"broken: {law}" in done.stdout
    assert "plain: orders/0" in done.stdout


def test_check_history__no_database__exit_code_3():
    done = check_history("--dsn", "postgresql://nobody@127.0.0.1:1/none")
    assert done.returncode == 3
    assert "no database" in done.stderr
