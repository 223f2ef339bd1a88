"""`coordinator groups`."""

from typing import TYPE_CHECKING

import click

from coordinator.cli import output
from coordinator.cli.commands import Group, Options, pass_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.model import GroupMember, GroupOffset


@click.group(cls=Group)
def groups() -> None:
    """List consumer groups; show offsets, lag and members."""


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


@groups.command(
    examples=(
        "coordinator groups describe billing",
        "coordinator groups describe billing --members",
        "coordinator groups describe billing --json",
    )
)
@click.argument("name")
@click.option("--members", "show_members", is_flag=True, help="Show the members in place of the partitions.")
@pass_options
def describe(options: Options, name: str, *, show_members: bool) -> None:
    """Show where a group stands in each partition, or who takes part in it.

    CURRENT-OFFSET is the first offset that is neither settled nor parked; LAG counts the messages not settled, and is an
    upper bound. PARKED of these wait apart: failed and retried later, held behind their key, or replayed. DEAD-LETTERS were
    given up, see `coordinator dlq`.
    The state is "stable" when every partition has an owner, "rebalancing" when one has none, "empty" without members.
    """
    with options.coordinator() as app:
        offsets = app.group_offsets(name)
        members = app.group_members(name)
        dead_letters = app.dead_letters(name).counts()
    state = _state(offsets, members)
    total_lag = sum(offset.lag for offset in offsets)
    total_parked = sum(offset.parked for offset in offsets)
    total_dead = sum(dead_letters.values())
    if options.as_json:
        output.json_object(
            {
                "group": name,
                "state": state,
                "member_count": len(members),
                "total_lag": total_lag,
                "total_parked": total_parked,
                "total_dead_letters": total_dead,
                "partitions": [
                    {**output.plain(offset), "dead_letters": dead_letters.get((offset.topic, offset.partition), 0)}
                    for offset in offsets
                ],
                "members": members,
            }
        )
    else:
        output.line(
            f"group {name}: {state}, {len(members)} members, total lag {total_lag}, {total_parked} parked, "
            f"{total_dead} dead letters"
        )
        if show_members:
            _member_table(members)
        else:
            _offset_table(offsets, dead_letters)
    if not members:
        output.note(f"group {name} has no members: nobody reads for it now")


def _state(offsets: "Sequence[GroupOffset]", members: "Sequence[GroupMember]") -> str:
    if not members:
        return "empty"
    return "rebalancing" if any(offset.member_id is None for offset in offsets) else "stable"


def _offset_table(offsets: "Sequence[GroupOffset]", dead_letters: "Mapping[tuple[str, int], int]") -> None:
    output.table(
        (
            "TOPIC",
            "PARTITION",
            "CURRENT-OFFSET",
            "LOG-START-OFFSET",
            "LOG-END-OFFSET",
            "LAG",
            "PARKED",
            "DEAD-LETTERS",
            "MEMBER-ID",
            "CLIENT-ID",
            "HOST",
        ),
        [
            (
                offset.topic,
                offset.partition,
                offset.current_offset,
                offset.log_start_offset,
                offset.log_end_offset,
                offset.lag,
                offset.parked,
                dead_letters.get((offset.topic, offset.partition), 0),
                offset.member_id,
                offset.client_id,
                offset.host,
            )
            for offset in offsets
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
