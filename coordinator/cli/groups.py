"""`coordinator groups`."""

from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import operating, output
from coordinator.cli.commands import Group, Options, pass_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.model import GroupInFlight, GroupInfo, GroupMember, GroupOffset, Oldest


@click.group(cls=Group)
def groups() -> None:
    """List consumer groups; show offsets, lag and members; pause, move and delete them."""


@groups.command(
    examples=(
        "coordinator groups expire billing --after-s 2592000",
        "coordinator groups expire billing --after-s 2592000 --action delete --dead-letters-after-s 7776000",
        "coordinator groups expire billing",
    )
)
@click.argument("name")
@click.option("--after-s", type=float, metavar="SECONDS", help="Without members for so long; else never.")
@click.option(
    "--action",
    type=click.Choice(("release", "delete")),
    default="release",
    show_default=True,
    help="release: it skips what retention drops; delete: it is deleted, with its dead letters.",
)
@click.option(
    "--dead-letters-after-s", type=float, metavar="SECONDS", help="Drop dead letters that are so old; else none."
)
@pass_options
def expire(
    options: Options, name: str, *, after_s: float | None, action: str, dead_letters_after_s: float | None
) -> None:
    """Say what becomes of a group that nobody runs, and of dead letters that are old; all three are set at once.

    A group without members holds back the segments that it has not read, for ever unless it expires.
    """
    with options.coordinator() as app:
        app.set_group_expiry(name, after_s, action, dead_letters_after_s)
    facts = {"group": name, "expire_s": after_s, "on_expiry": action, "max_dead_letter_age_s": dead_letters_after_s}
    if options.as_json:
        output.json_object(facts)
    else:
        output.table(("GROUP", "EXPIRE-S", "ON-EXPIRY", "MAX-DEAD-LETTER-AGE-S"), [tuple(facts.values())])


@groups.command("list", examples=("coordinator groups list", "coordinator groups list --json"))
@pass_options
def list_groups(options: Options) -> None:
    """List the groups with their lag, those without members too."""
    with options.coordinator() as app:
        found = app.groups()
    if options.as_json:
        output.json_object(
            {
                "groups": [
                    {
                        "group": group.name,
                        "topics": group.topics,
                        "members": group.members,
                        "lag": group.lag,
                        "created_at": group.created_at,
                    }
                    for group in found
                ]
            }
        )
    else:
        output.table(
            ("GROUP", "TOPICS", "MEMBERS", "LAG", "CREATED"),
            [(group.name, group.topics, group.members, group.lag, group.created_at) for group in found],
        )
    idle = [group.name for group in found if not group.members]
    if idle:
        output.note(f"without members: {output.cell(idle)}")
    if not found:
        output.note("no groups yet; one is made by its first consumer")


for _command in (operating.pause, operating.resume, operating.seek, operating.skip, operating.delete):
    groups.add_command(_command)


@groups.command(
    examples=(
        "coordinator groups describe billing",
        "coordinator groups describe billing --members",
        "coordinator groups describe billing --in-flight",
        "coordinator groups describe billing --json",
    )
)
@click.argument("name")
@click.option("--members", "show_members", is_flag=True, help="Show the members in place of the partitions.")
@click.option("--in-flight", "show_in_flight", is_flag=True, help="Show what owners have in hand in their place.")
@pass_options
def describe(options: Options, name: str, *, show_members: bool, show_in_flight: bool) -> None:
    """Show where a group stands in each partition, who takes part in it, or what is in hand.

    CURRENT-OFFSET is the first offset that is neither settled nor parked, and - where nothing was committed yet. LAG counts the
    messages not settled, and is an upper bound; AGE is that of the oldest of them. IN-FLIGHT is what the owner may have in hand.
    RETRYING wait apart: failed and retried later, held behind their key, or replayed. Dead letters were given up, see
    `coordinator dlq`.
    The state is "stable" when every partition has an owner, "rebalancing" when one has none, "empty" without members. Members
    and owners count while their lease runs.
    """
    if show_members and show_in_flight:
        raise click.UsageError("--members and --in-flight show two tables; give one of them")
    from coordinator.protocol.admin import list_groups  # noqa: PLC0415 - heavy

    with options.coordinator() as app:
        offsets = app.group_offsets(name)
        members = app.group_members(name)
        dead_letters = app.dead_letters(name).counts()
        oldest = app.oldest_unsettled(name)
        info = app.execute(list_groups(name))[0]
        in_flight = app.group_in_flight(name) if show_in_flight or options.as_json else []
    facts = {**_facts(name, offsets, members, dead_letters, oldest), "expiry": _expiry(info)}
    if options.as_json:
        output.json_object({**facts, "members": members, "in_flight": list(in_flight)})
    else:
        age = output.duration(facts["oldest_age_s"])
        output.line(
            f"group {name}: {facts['state']}, {output.counted(facts['member_count'], 'member')}, total lag {facts['total_lag']}, "
            f"oldest unacked {age}, {facts['total_parked']} retrying, {facts['total_dead_letters']} dead letters"
        )
        output.line(_expiry_told(info))
        if show_members:
            _member_table(members)
        elif show_in_flight:
            _in_flight_table(in_flight)
        else:
            _offset_table(facts["partitions"])
    if facts["paused"]:
        output.note(f"{facts['paused']} of {len(offsets)} partitions are paused: nothing of them is handed over")
    if not facts["member_count"]:
        output.note(f"group {name} has no members: nobody reads for it now")


def _expiry(info: "GroupInfo") -> dict[str, Any]:
    names = ("unused_since", "expire_s", "on_expiry", "max_dead_letter_age_s")
    return {name: getattr(info, name) for name in names}


def _expiry_told(info: "GroupInfo") -> str:
    kept = "of any age" if info.max_dead_letter_age_s is None else f"for {output.duration(info.max_dead_letter_age_s)}"
    if info.expire_s is None:
        text = "never expires"
    else:
        what = "is deleted" if info.on_expiry == "delete" else "holds back nothing any more"
        text = f"{what} after {output.duration(info.expire_s)} without members"
    since = "" if info.unused_since is None else f", has none since {output.cell(info.unused_since)}"
    return f"{text}{since}; dead letters are kept {kept}, up to the bound in dlq stats"


def _facts(
    name: str,
    offsets: "Sequence[GroupOffset]",
    members: "Sequence[GroupMember]",
    dead_letters: "Mapping[tuple[str, int], int]",
    oldest: "Mapping[tuple[str, int], Oldest]",
) -> dict[str, Any]:
    """What is shown of a group, by the names that JSON has."""
    partitions = []
    for offset in offsets:
        place = offset.topic, offset.partition
        first = oldest.get(place)
        partitions.append(
            {
                **output.plain(offset),
                # Nobody has ever owned it: it stands where the group began.
                "current_offset": offset.current_offset if offset.epoch else None,
                "in_flight": offset.window_open,
                "dead_letters": dead_letters.get(place, 0),
                "oldest_offset": None if first is None else first.offset,
                "oldest_age_s": None if first is None else first.age_s,
            }
        )
    return {
        "group": name,
        "state": _state(offsets, members),
        "member_count": sum(member.live for member in members),
        "paused": sum(offset.paused for offset in offsets),
        "total_lag": sum(offset.lag for offset in offsets),
        "total_parked": sum(offset.parked for offset in offsets),
        "total_dead_letters": sum(dead_letters.values()),
        "oldest_age_s": max((first.age_s for first in oldest.values()), default=None),
        "partitions": partitions,
    }


def _state(offsets: "Sequence[GroupOffset]", members: "Sequence[GroupMember]") -> str:
    live = {member.member_id for member in members if member.live}
    if not live:
        return "empty"
    return "stable" if all(offset.member_id in live for offset in offsets) else "rebalancing"


_COLUMNS = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "CURRENT-OFFSET": "current_offset",
    "LOG-START-OFFSET": "log_start_offset",
    "LOG-END-OFFSET": "log_end_offset",
    "LAG": "lag",
    "AGE": "oldest_age_s",
    "IN-FLIGHT": "in_flight",
    "RETRYING": "parked",
    "MEMBER-ID": "member_id",
    "CLIENT-ID": "client_id",
    "HOST": "host",
}


def _offset_table(partitions: "Sequence[Mapping[str, Any]]") -> None:
    output.table(
        tuple(_COLUMNS),
        [
            [output.duration(row[name]) if column == "AGE" else row[name] for column, name in _COLUMNS.items()]
            for row in partitions
        ],
    )


def _in_flight_table(in_flight: "Sequence[GroupInFlight]") -> None:
    output.table(
        ("TOPIC", "PARTITION", "FIRST-OFFSET", "MESSAGES", "RETRIES", "MEMBER-ID", "CLIENT-ID", "HOST", "SINCE"),
        [
            (
                row.topic,
                row.partition,
                row.first_offset,
                row.messages,
                row.retries,
                row.member_id,
                row.client_id,
                row.host,
                row.since,
            )
            for row in in_flight
        ],
    )


def _member_table(members: "Sequence[GroupMember]") -> None:
    output.table(
        ("MEMBER-ID", "CLIENT-ID", "HOST", "PID", "STATE", "PARTITIONS", "LEASE-LEFT-S", "JOINED", "TOPICS"),
        [
            (
                member.member_id,
                member.client_id,
                member.host,
                member.pid,
                member.state,
                member.partitions,
                round(member.lease_left_s, 1),
                member.joined_at,
                member.topics,
            )
            for member in members
        ],
    )
