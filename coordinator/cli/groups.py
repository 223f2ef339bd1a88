"""`coordinator groups`."""

from typing import TYPE_CHECKING

import click

from coordinator.cli import output
from coordinator.cli.commands import Group, Options, pass_options

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    CURRENT-OFFSET is the first offset that is not settled; LAG counts the messages not settled, and is an upper bound.
    The state is "stable" when every partition has an owner, "rebalancing" when one has none, "empty" without members.
    """
    with options.coordinator() as app:
        offsets = app.group_offsets(name)
        members = app.group_members(name)
    state = _state(offsets, members)
    total_lag = sum(offset.lag for offset in offsets)
    if options.as_json:
        output.json_object(
            {
                "group": name,
                "state": state,
                "member_count": len(members),
                "total_lag": total_lag,
                "partitions": offsets,
                "members": members,
            }
        )
    else:
        output.line(f"group {name}: {state}, {len(members)} members, total lag {total_lag}")
        if show_members:
            _member_table(members)
        else:
            _offset_table(offsets)
    if not members:
        output.note(f"group {name} has no members: nobody reads for it now")


def _state(offsets: "Sequence[GroupOffset]", members: "Sequence[GroupMember]") -> str:
    if not members:
        return "empty"
    return "rebalancing" if any(offset.member_id is None for offset in offsets) else "stable"


def _offset_table(offsets: "Sequence[GroupOffset]") -> None:
    output.table(
        (
            "TOPIC",
            "PARTITION",
            "CURRENT-OFFSET",
            "LOG-START-OFFSET",
            "LOG-END-OFFSET",
            "LAG",
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
