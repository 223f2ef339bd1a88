"""Reads a record's folder and a database into a History: the tables in one snapshot, the flight recorder where there is one."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import psycopg
from support.history.model import (
    FOREVER,
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
from support.history.recorder import SUFFIX, read

from coordinator.core.ranges import from_text
from coordinator.protocol.placeholder import DEFAULT_SCHEMA, render

if TYPE_CHECKING:
    from pathlib import Path

DRIVER = "driver"
ENDS = ("ack", "fail", "reject", "die", "broken")


def load(folder: Path | None, dsn: str | None, schema: str = DEFAULT_SCHEMA, *, light: bool = False) -> History:
    """Read what there is of both.

    Args:
        light: Neither messages nor the flight recorder are read: for a look at a state in the middle.
    """
    history = History(with_record=folder is not None)
    # The tables first: what they hold was announced before, also where processes go on meanwhile. What is announced later is left
    # out: no table that was read can hold it.
    read_at = FOREVER
    if dsn is not None:
        read_at = _Tables(history, schema).read(dsn, light=light)
    if folder is not None:
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            events = [event for event in read(path) if event["at"] <= read_at]
            if path.stem == DRIVER:
                history.driver = events
            else:
                _read_process(history, path.stem, events)
        for event in history.driver:
            if event["event"] == "kill" and event["process"] in history.processes:
                process = history.processes[event["process"]]
                process.died_at = min(process.died_at, event["at"])
    set_apart(history)
    return history


def _read_process(history: History, name: str, events: list[dict[str, Any]]) -> None:
    process = history.processes[name] = Process(name)
    runs: dict[int, Run] = {}
    publishes: dict[str, Publish] = {}
    keys: dict[ClaimKey, ClaimKey] = {}
    for event in events:
        kind, at = event["event"], event["at"]
        if kind == "start":
            key = ClaimKey(event["group"], event["topic"], event["partition"])
            key = keys.setdefault(key, key)
            run = runs[event["run"]] = Run(
                name,
                event["run"],
                key,
                event["offset"],
                event["epoch"],
                event["attempt"],
                at,
                event["value"],
                event["key"],
                event["batch"],
            )
            process.runs.append(run)
            history.runs.setdefault(key, []).append(run)
        elif kind in ENDS:
            run = runs[event["run"]]
            run.end, run.end_at, run.delay_s = kind, at, event.get("delay_s")
            if kind == "die":
                process.died_at = at
        elif kind == "told":
            for number in event["runs"]:
                run = runs[number]
                run.told, run.told_at, run.error = event["outcome"], at, event.get("error")
        elif kind == "process":
            process.facts = event
        elif kind == "exchanges":
            process.exchanges.append((at, event["tenths_ms"]))
        elif kind == "publish":
            made = Publish(name, event["id"], event["topic"], event["values"], at, event.get("dedup", False))
            publishes[event["id"]] = made
            history.publishes.append(made)
        elif kind == "published":
            made = publishes[event["id"]]
            made.outcome, made.told_at, made.places = event["outcome"], at, event.get("places", [])


_CLAIMS = """
select c.group_id, c.topic_id, c.partition, g.name, t.name, c.start_offset, c.owner::text, c.epoch, c.resets,
       p.committed, p.hwm, p.done::text, coalesce(coordinator.high_offset(c.topic_id, c.partition), -1), o.lag
from coordinator.claims c
join coordinator.groups g using (group_id) join coordinator.topics t using (topic_id)
cross join lateral (select p.* from coordinator.progress p
                    where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
                    order by p.seq desc limit 1) p
join coordinator.offsets o on o."group" = g.name and o.topic = t.name and o.partition = c.partition
"""
_AT = "extract(epoch from {})::double precision"


class _Tables:
    def __init__(self, history: History, schema: str) -> None:
        self._history = history
        self._schema = schema
        self._claims: dict[tuple[int, int, int], ClaimState] = {}
        self._keeps_commits = False

    def read(self, dsn: str, *, light: bool) -> float:
        """Read all of it in one snapshot; returns when that was taken, by the server's clock, which is the host's."""
        with psycopg.connect(dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            self._connection = connection
            # The statement takes the snapshot before it looks at the clock: nothing that it sees is later.
            read_at: float = self._all("select extract(epoch from clock_timestamp())::double precision")[0][0]
            self._keeps_commits = self._all("show track_commit_timestamp")[0][0] == "on"
            self._read_state()
            if light:
                return read_at
            self._read_rows()
            self._history.audited = bool(self._all("select 1 from pg_namespace n where n.nspname = 'history'"))
            if self._history.audited:
                self._read_flight()
            return read_at

    def _all(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(render(text, self._schema), parameters or None).fetchall()  # type: ignore[arg-type]

    def _commit(self, xid: str) -> str:
        """When a transaction has committed; without that of the server, nothing better than when it wrote."""
        return _AT.format(f"pg_xact_commit_timestamp({xid})") if self._keeps_commits else "null::double precision"

    def _read_state(self) -> None:
        for *ids, group, topic, start, owner, epoch, resets, committed, hwm, done, high, lag in self._all(_CLAIMS):
            state = ClaimState(start, committed, hwm, high, from_text(done), owner, epoch, resets, lag)
            self._claims[tuple(ids)] = self._history.claims[ClaimKey(group, topic, ids[2])] = state  # type: ignore[index]
        where = "group_id, topic_id, partition"
        for *ids, offset, fails, crashes, behind, dispatched, with_payload in self._all(
            f'select {where}, "offset", fails, crashes, behind_key, dispatched_epoch, payload is not null from coordinator.retries'
        ):
            self._of(ids).retries[offset] = Retry(fails, crashes, behind, dispatched, with_payload)
        for *ids, offset, epoch in self._all(f'select {where}, "offset", epoch from coordinator.acks'):
            self._of(ids).acks.append((offset, epoch))
        for *ids, epoch, offsets in self._all(f"select {where}, epoch, offsets::text from coordinator.crashes"):
            self._of(ids).crashes.append((epoch, from_text(offsets)))
        for *ids, offset, payload, reason, died_at in self._all(
            f'select {where}, "offset", payload, reason, {_AT.format("died_at")} from coordinator.dead_letters'
        ):
            self._of(ids).letters[offset] = Letter(payload, reason, died_at)
        for group, member in self._all(
            "select g.name, m.coordinator::text from coordinator.members m join coordinator.groups g using (group_id) "
            "join coordinator.coordinators c using (coordinator) where c.state <> 'dead'"
        ):
            self._history.members.setdefault(group, set()).add(member)
        self._read_skipped()

    def _read_skipped(self) -> None:
        """What operators and retention have passed, where the schema knows of such."""
        for name in ("skips", "skipped"):
            columns = {
                row[0]
                for row in self._all(
                    "select a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n "
                    "on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s and a.attnum > 0",
                    self._schema,
                    name,
                )
            }
            if {"group_id", "topic_id", "partition", "offsets"} <= columns:
                for *ids, offsets in self._all(
                    f"select group_id, topic_id, partition, range_agg(s.offsets)::text from coordinator.{name} s group by 1, 2, 3"
                ):
                    self._of(ids).skipped = from_text(offsets)

    def _read_rows(self) -> None:
        commit = self._commit("m.xmin")
        for topic_id, name, partitions in self._all("select topic_id, name, partitions from coordinator.topics"):
            for partition in range(partitions):
                self._history.rows[name, partition] = {}
            for partition, offset, key, payload, commit_at in self._all(
                f'select m.partition, m."offset", m.key, m.payload, {commit} from coordinator.topic_{topic_id} m'
            ):
                self._history.rows[name, partition][offset] = Row(_value(payload), key, payload, commit_at)

    def _of(self, ids: list[Any]) -> ClaimState:
        return self._claims[tuple(ids)]  # type: ignore[index]

    def _read_flight(self) -> None:
        commit = self._commit("xid::xid") if self._keeps_commits else _AT.format("at")
        place, at = "group_id, topic_id, partition", _AT.format("at")
        found: dict[str, str] = {}
        for *ids, seq, epoch, committed, hwm, done, claim_epoch, commit_at, resets, owner, application in self._all(
            f"select {place}, seq, epoch, committed, hwm, done::text, claim_epoch, {commit}, resets, owner::text, application "
            "from history.progress order by group_id, topic_id, partition, seq, n"
        ):
            self._of(ids).progress.append(
                Progress(
                    seq,
                    epoch,
                    committed,
                    hwm,
                    from_text(done),
                    claim_epoch,
                    commit_at,
                    resets,
                    owner,
                    found.setdefault(application, application),
                )
            )
        for *ids, owner, epoch, written_at in self._all(
            f"select {place}, owner::text, epoch, {at} from history.claims order by n"
        ):
            self._of(ids).owned.append(Owned(owner, epoch, written_at))
        for *ids, op, offset, fails, crashes, next_at, dispatched, was, written_at, commit_at, replays in self._all(
            f'select {place}, op, "offset", fails, crashes, {_AT.format("next_at")}, dispatched_epoch, was_dispatched_epoch, '
            f"{at}, {commit}, replays from history.retries order by n"
        ):
            self._of(ids).parked.append(
                Parked(op, offset, fails, crashes, next_at, dispatched, was, written_at, commit_at, replays)
            )
        for *ids, offset, epoch, claim_epoch, commit_at in self._all(
            f'select {place}, "offset", epoch, claim_epoch, {commit} from history.acks order by n'
        ):
            self._of(ids).acked.append(Acked(offset, epoch, claim_epoch, commit_at))
        for *ids, op, offset, reason, commit_at in self._all(
            f'select {place}, op, "offset", reason, {commit} from history.dead_letters order by n'
        ):
            self._of(ids).buried.append(Buried(op, offset, reason, commit_at))
        for *ids, op, epoch, offsets, alone, commit_at in self._all(
            f"select {place}, op, epoch, offsets::text, alone, {commit} from history.crashes order by n"
        ):
            self._of(ids).crashed.append(Crash(op, epoch, from_text(offsets), alone, commit_at))
        self._history.effects = self._all('select "group", topic, partition, "offset" from history.effects')  # type: ignore[assignment]
        deaths: dict[str, float] = defaultdict(lambda: FOREVER)
        for coordinator, client, state, written_at in self._all(
            f"select coordinator::text, client_id, state, {at} from history.coordinators order by n"
        ):
            self._history.clients[coordinator] = client
            if state in ("dead", "gone"):
                deaths[coordinator] = min(deaths[coordinator], written_at)
        self._history.deaths = dict(deaths)


def _value(payload: bytes) -> str:
    """The name of a message, if it is one of ours."""
    try:
        found = json.loads(payload)
    except ValueError:
        return ""
    return str(found.get("id", "")) if isinstance(found, dict) else str(found)
