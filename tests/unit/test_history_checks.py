"""The checker of histories: a sound one passes, and each invariant is named when it is broken, and no other for want of it."""

import json

import pytest
from support.history.check import ORDER, check, report, violations
from support.history.load import load
from support.history.model import (
    Acked,
    Buried,
    ClaimKey,
    ClaimState,
    Crash,
    History,
    Letter,
    Owned,
    Parked,
    Process,
    Progress,
    Publish,
    Retry,
    Row,
    Run,
)
from support.history.promotion import set_apart
from support.history.recorder import Recorder

PLAIN = ClaimKey("plain", "orders", 0)
LEDGER = ClaimKey("ledger", "orders", 0)


def sound():
    """Two groups, five messages: 1 fails once and comes again, 2 is rejected, 3 was rolled back."""
    reads = {"concurrency": 2, "batch_size": 1, "explicit": False, "ask": 10, "max_attempts": 4, "max_crashes": 3}
    facts = {
        "groups": {
            "plain": {**reads, "ordering": "partition", "transactional": False},
            "ledger": {**reads, "ordering": "none", "transactional": True},
        },
        "visibility_s": 30.0,
        "lease_s": 2.0,
        "poll_s": 0.5,
    }
    history = History(processes={"w": Process("w", facts)}, audited=True)
    payloads = {offset: json.dumps({"id": f"m{offset}"}).encode() for offset in (0, 1, 2, 4)}
    history.rows["orders", 0] = {offset: Row(f"m{offset}", "k", payload, 1.0) for offset, payload in payloads.items()}
    history.publishes = [
        Publish("p", f"m{offset}", "orders", [f"m{offset}"], 0.5, outcome="returned", told_at=1.0, places=[[0, offset]])
        for offset in payloads
    ]
    history.publishes.append(Publish("p", "m3", "orders", ["m3"], 0.6, outcome="rolled back", told_at=0.9))
    history.driver = [
        {"event": event, "at": at} for event, at in (("calm", 60), ("settled", 61), ("balanced", 62), ("end", 70))
    ]
    history.clients = {"me": "w"}
    history.members = {"plain": {"me"}, "ledger": {"me"}}
    for key in (PLAIN, LEDGER):
        history.claims[key] = ClaimState(
            0, 5, 5, 4, owner="me", epoch=1, owned=[Owned(None, 0, 1.0), Owned("me", 1, 2.0)]
        )
    start(history, PLAIN, 0, 4.0, "ack", 4.1, told_at=4.3)
    start(history, PLAIN, 1, 4.2, "fail", 4.3)
    start(history, PLAIN, 1, 5.0, "ack", 5.1, attempt=2, told_at=5.3)
    start(history, PLAIN, 2, 5.2, "reject", 5.3)
    start(history, PLAIN, 4, 5.6, "ack", 5.7, told_at=6.0)
    plain = history.claims[PLAIN]
    plain.letters[2] = Letter(payloads[2], "rejected", 5.5)
    plain.buried = [Buried("insert", 2, "rejected", 5.5)]
    plain.parked = [
        Parked("insert", 1, 1, 0, 4.8, None, None, 4.4, 4.41),
        Parked("update", 1, 1, 0, 4.8, 1, None, 4.9, 4.91),
        Parked("delete", 1, 1, 0, None, None, None, 5.15, 5.2),
    ]
    plain.progress = [
        progress(1, 0, 0, (), 2.0),
        progress(2, 0, 5, (), 3.0),
        progress(3, 1, 5, (), 4.2),
        progress(4, 2, 5, ((3, 4),), 4.41),
        progress(5, 4, 5, (), 5.5),
        progress(6, 5, 5, (), 5.9),
    ]
    for offset, at in ((0, 4.0), (1, 4.1), (2, 4.2), (4, 4.3)):
        start(history, LEDGER, offset, at, "ack", at + 0.1, told_at=at + 0.3)
        history.claims[LEDGER].acked.append(Acked(offset, 1, 1, at + 0.2))
        history.effects.append((*LEDGER, offset))
    history.claims[LEDGER].progress = [
        progress(1, 0, 0, (), 2.0),
        progress(2, 0, 5, (), 3.0),
        progress(3, 5, 5, (), 5.0),
    ]
    return history


def progress(seq, committed, hwm, done, at, epoch=1):
    return Progress(seq, epoch, committed, hwm, done, epoch, at, owner="me", application="coordinator work w")


def start(history, key, offset, at, end=None, end_at=float("inf"), *, attempt=1, epoch=1, told_at=None, process="w"):
    runs = history.processes[process].runs
    delay_s = 0.3 if end == "fail" else None
    told = ("returned", told_at) if told_at else (None, float("inf"))
    run = Run(process, len(runs), key, offset, epoch, attempt, at, f"m{offset}", "k", None, end, end_at, delay_s, *told)
    runs.append(run)
    history.runs.setdefault(key, []).append(run)
    return run


def broken(history):
    return {violation.law for violation in violations(check(history))}


def find(history, key, offset, attempt=1):
    return next(run for run in history.runs[key] if (run.offset, run.attempt) == (offset, attempt))


def test_history__sound__holds_in_every_invariant():
    verdicts = check(sound())
    assert violations(verdicts) == []
    assert not any(verdict.skipped for verdict in verdicts)
    assert {verdict.law.name for verdict in verdicts} == set(ORDER)
    # I6 counts refusals and I13 deaths: a quiet history has none.
    assert {verdict.law.name for verdict in verdicts if not verdict.count} == {"I6", "I13"}


def i1_parked_and_open(history):
    history.claims[PLAIN].committed = 4
    history.claims[PLAIN].retries[4] = Retry(1)


def i1_parked_and_dead(history):
    history.claims[PLAIN].retries[2] = Retry(1)


def i1_ack_of_no_message(history):
    history.claims[LEDGER].acks.append((9, 1))


def i2_committed_above_hwm(history):
    history.claims[PLAIN].hwm = 4


def i2_done_not_above_committed(history):
    history.claims[PLAIN].committed, history.claims[PLAIN].done = 4, ((4, 5),)


def i2_ack_of_an_old_epoch(history):
    history.claims[LEDGER].acks.append((4, 0))


def i2_parked_before_it_is_done(history):
    versions = history.claims[PLAIN].parked
    versions[0] = versions[0]._replace(commit_at=4.3)


def i3_falls(history):
    history.claims[PLAIN].progress.append(progress(7, 4, 5, (), 6.5))


def i3_forgets_what_was_done(history):
    rows = history.claims[PLAIN].progress
    rows.insert(4, progress(4, 2, 5, (), 4.5))


def i3_passes_what_nobody_acked(history):
    find(history, PLAIN, 4).end = None


def i3_passes_before_the_ack(history):
    find(history, PLAIN, 0).end_at = 4.25


def i4_counts_as_settled_and_never_started(history):
    history.runs[PLAIN] = [run for run in history.runs[PLAIN] if run.offset != 4]


def i4_never_settled(history):
    history.claims[PLAIN].committed = 4


def i4_committed_publish_is_not_there(history):
    del history.rows["orders", 0][4]


def i4_rolled_back_publish_is_there(history):
    history.rows["orders", 0][3] = Row("m3", "k", b'{"id": "m3"}')


def i4_published_twice(history):
    history.rows["orders", 0][3] = Row("m0", "k", b'{"id": "m0"}')


def i4_something_else_is_delivered(history):
    find(history, PLAIN, 4).value = "m99"


def i5_again_in_the_same_epoch(history):
    start(history, PLAIN, 0, 7.0)


def i5_again_in_a_later_epoch(history):
    start(history, LEDGER, 0, 7.0, epoch=2)


def i6_progress_of_a_zombie(history):
    rows = history.claims[PLAIN].progress
    rows[-1] = rows[-1]._replace(claim_epoch=2)


def i6_ack_of_a_zombie(history):
    acked = history.claims[LEDGER].acked
    acked[0] = acked[0]._replace(claim_epoch=2)


def i7_epoch_falls(history):
    rows = history.claims[PLAIN].progress
    rows[-2] = rows[-2]._replace(epoch=2, claim_epoch=2)


def i7_two_owners_of_an_epoch(history):
    history.claims[PLAIN].owned.append(Owned("you", 1, 3.0))


def i7_written_by_somebody_else(history):
    rows = history.claims[PLAIN].progress
    rows[-1] = rows[-1]._replace(application="coordinator work v")


def i8_twice_in_flight(history):
    start(history, LEDGER, 0, 4.05)


def i9_before_the_window(history):
    find(history, PLAIN, 0).start_at = 2.9


def i9_retry_before_it_was_handed_out(history):
    versions = history.claims[PLAIN].parked
    versions[1] = versions[1]._replace(commit_at=5.05)
    # Its first window does not count: the message had left it.
    history.claims[PLAIN].progress = [
        row._replace(hwm=min(row.hwm, 1), committed=min(row.committed, 1), done=())
        for row in history.claims[PLAIN].progress
    ]


def i10_next_starts_before_the_former_is_settled(history):
    find(history, PLAIN, 4).start_at = 4.5


def i10_key_order(history):
    history.processes["w"].facts["groups"]["plain"]["ordering"] = "key"
    find(history, PLAIN, 4).start_at = 4.5


def i11_attempt_below_what_is_charged(history):
    find(history, PLAIN, 1, 2).attempt = 1


def i11_attempt_falls(history):
    history.claims[PLAIN].parked.clear()
    find(history, PLAIN, 1).attempt = 3


def i11_more_failures_than_the_budget(history):
    for number in range(4):
        start(history, PLAIN, 1, 4.31 + number / 100, "fail", 4.311 + number / 100)


def i12_other_payload(history):
    history.claims[PLAIN].letters[2] = Letter(b"else", "rejected")


def i12_letter_of_an_open_message(history):
    state = history.claims[PLAIN]
    state.committed = 2


def i12_letter_of_an_acked_message(history):
    history.claims[PLAIN].letters[0] = Letter(history.rows["orders", 0][0].payload)


def i12_letter_is_gone(history):
    del history.claims[PLAIN].letters[2]


def i13_neighbour_at_the_last(history):
    die(history)
    start(history, LEDGER, 1, 5.33)


def i13_nothing_was_charged(history):
    die(history)
    history.claims[PLAIN].crashed.clear()


def die(history):
    """Message 2 dies of crashes, alone."""
    history.claims[PLAIN].letters[2] = history.claims[PLAIN].letters[2]._replace(reason="crash")
    history.claims[PLAIN].buried = [Buried("insert", 2, "crash", 5.5)]
    start(history, PLAIN, 2, 5.32, "die", 5.35)
    history.processes["w"].died_at = 5.35
    history.claims[PLAIN].crashed = [Crash("insert", 1, ((2, 3),), True, 5.45)]


def i14_handed_out_before_it_is_due(history):
    versions = history.claims[PLAIN].parked
    versions[1] = versions[1]._replace(next_at=6.0)


def i14_starts_before_its_delay(history):
    find(history, PLAIN, 1).delay_s = 2.0


def i15_more_at_once_than_asked_for(history):
    for offset in (0, 1, 2):
        start(history, LEDGER, offset, 9.0, "ack", 9.5)


def i15_holes(history):
    done = tuple((number, number + 1) for number in range(10, 4000, 2))
    history.claims[PLAIN].progress[-1] = progress(6, 5, 5, done, 5.9)


def i15_memory(history):
    history.driver.append({"event": "grown", "at": 1.0, "what": "memory w", "was": 1, "now": 9, "most": 2})


def i16_negative(history):
    history.claims[PLAIN].lag = -1


def i16_more_than_there_is(history):
    history.claims[PLAIN].lag = 2


def i17_told_and_not_there(history):
    history.claims[PLAIN].committed = 4


def i17_told_before_the_commit(history):
    find(history, PLAIN, 0).told_at = 4.15


def i17_told_refused_and_there(history):
    run = find(history, LEDGER, 0)
    run.told, run.error = "raised", "StaleEpochError"


def i18_two_effects(history):
    history.effects.append((*LEDGER, 0))


def i18_effect_without_ack(history):
    history.claims[LEDGER].acked.pop()


def i18_ack_without_effect(history):
    history.effects.pop()


def i18_settled_with_neither(history):
    """As when the outcome of a COMMIT is taken from a transaction that was given the same id after a crash."""
    history.effects.pop()
    history.claims[LEDGER].acked.pop()


def l1_not_settled(history):
    history.claims[PLAIN].committed = 4


def l1_rows_at_rest(history):
    history.claims[LEDGER].acks.append((4, 1))


def l1_owned_by_nobody(history):
    history.claims[PLAIN].owner = None


def l1_unbalanced(history):
    history.members["plain"] = {"me", "you"}
    history.claims[ClaimKey("plain", "orders", 1)] = ClaimState(0, 0, 0, -1, owner="me")


def l1_unowned_for_too_long(history):
    history.claims[PLAIN].owned = [Owned(None, 0, 1.0), Owned("me", 1, 2.0), Owned(None, 1, 50.0), Owned("me", 2, 69.0)]


def l1_moves_after_the_balance(history):
    history.claims[PLAIN].owned.append(Owned("me", 2, 65.0))


BREAKS = [
    (name.split("_")[0].upper(), value)
    for name, value in list(globals().items())
    if callable(value) and name.split("_")[0] in {law.lower() for law in ORDER}
]


@pytest.mark.parametrize(("law", "break_"), BREAKS, ids=[break_.__name__ for _, break_ in BREAKS])
def test_history__broken__the_invariant_is_named(law, break_):
    history = sound()
    break_(history)
    found = [violation for violation in violations(check(history)) if violation.law == law]
    assert found, f"{law} does not see it; seen: {broken(history)}"
    assert found[0].where
    assert any(line.startswith(f"{law:4}") and "BROKEN" in line for line in report(check(history)))


def test_breaks__each_invariant_has_one():
    assert {law for law, _ in BREAKS} == set(ORDER)


def test_history__died_of_crashes_alone__is_no_violation():
    history = sound()
    die(history)
    assert broken(history) == set()


def test_history__died_while_another_consumer_of_the_process_ran__is_no_violation():
    """Consumers with loops of their own are coordinators of their own: neither knows of the other's messages."""
    history = sound()
    die(history)
    start(history, LEDGER, 1, 5.33)
    for reads in history.processes["w"].facts["groups"].values():
        reads["explicit"] = True
    assert "I13" not in broken(history)


def test_history__started_twice_after_its_deadline__is_no_violation():
    history = sound()
    start(history, PLAIN, 4, 45.0)
    history.runs[PLAIN][-2].told = None
    assert "I8" not in broken(history)


def test_history__without_a_flight_recorder__says_what_was_not_checked():
    history = sound()
    history.audited = False
    skipped = {verdict.law.name: verdict.skipped for verdict in check(history) if verdict.skipped}
    assert skipped["I7"] == "no flight recorder in the database"
    assert "I1" not in skipped


def test_recorder__events__are_read_back_and_half_a_line_is_none(tmp_path):
    recorder = Recorder(tmp_path, "p")
    recorder.say("process", name="p", groups={})
    recorder.say("publish", id="x", topic="orders", values=["a"])
    recorder.say("published", id="x", outcome="returned", places=[[0, 7]])
    recorder.say("publish", id="y", topic="orders", values=["b"])
    recorder.close()
    with recorder.path.open("ab") as file:
        file.write(b'{"event": "pub')
    history = load(tmp_path, None)
    assert [(publish.name, publish.outcome) for publish in history.publishes] == [("x", "returned"), ("y", "unknown")]


def test_crashes__withdrawn__attempts_may_fall():
    history = sound()
    find(history, PLAIN, 1).attempt = 3
    history.claims[PLAIN].crashed = [
        Crash("insert", 1, ((1, 2),), False, 3.0),
        Crash("delete", 1, ((1, 2),), False, 4.9),
    ]
    assert "I11" not in broken(history)


# ---- a promotion


def promote(history, detach, detached, promoted):
    moments = (("detach", detach), ("detached", detached), ("promote", promoted))
    history.driver[:0] = [{"event": event, "at": at} for event, at in moments]
    set_apart(history)


def test_promotion__sets_apart_what_it_may_have_undone():
    history = History(processes={"w": Process("w")}, clients={"old": "w", "new": "w"})
    history.claims[PLAIN] = ClaimState(0, 0, 0, 9, owned=[Owned("old", 1, 2.0), Owned("new", 2, 30.0)])
    before = start(history, PLAIN, 0, 10.0, "ack", 10.1, told_at=20.5)
    late = start(history, PLAIN, 6, 19.0, "ack", 22.9, told_at=23.1)
    between = start(history, PLAIN, 1, 20.5, "ack", 20.6)
    start(history, PLAIN, 2, 22.0, "ack", 22.1)
    start(history, PLAIN, 3, 24.0, "ack", 24.1)
    after = start(history, PLAIN, 3, 31.0, "ack", 31.1, epoch=2)
    start(history, PLAIN, 4, 31.0, "ack", 31.1, epoch=1)
    start(history, PLAIN, 5, 29.0, "ack", 29.1, epoch=2)
    history.publishes = [
        Publish("p", str(told_at), "orders", ["m"], sent_at, outcome="returned", told_at=told_at)
        # The third was answered by the lost primary, and its publisher came to telling it late.
        for sent_at, told_at in ((18.0, 19.0), (21.5, 22.0), (22.9, 23.1), (23.1, 25.0))
    ]
    promote(history, 20.0, 21.0, 23.0)
    assert history.runs[PLAIN] == [before, late, after]
    assert before.told == late.told == "unknown"
    assert history.doubtful[PLAIN] == [between]
    assert [publish.outcome for publish in history.publishes] == ["returned", "unknown", "unknown", "returned"]


def test_promotion__nothing_of_the_lost_history_is_in_the_tables__is_no_violation():
    history = sound()
    promote(history, 0.1, 0.2, 0.3)
    assert broken(history) == set()


def test_promotion__an_ack_of_the_lost_history_is_applied__is_told():
    """By a process that has not noticed: its claim is older than the promotion."""
    history = sound()
    promote(history, 5.4, 5.5, 5.55)
    assert broken(history) >= {"I3", "I4"}
