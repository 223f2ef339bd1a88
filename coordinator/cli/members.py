"""`coordinator members`: the processes that consume."""

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Group, Options, pass_options


@click.group(cls=Group)
def members() -> None:
    """List consumer processes; take work away from one, or end its rights."""


@members.command(
    "list",
    examples=(
        "coordinator members list",
        "coordinator members list --dead",
        "coordinator members list --json",
    ),
)
@click.option("--dead", is_flag=True, help="Also those that died within the last day.")
@pass_options
def list_members(options: Options, *, dead: bool) -> None:
    """List consumer processes, and the partitions that wait to be handed over.

    STATE is alive, draining (by `members drain`), away (left; its place is kept for its static id), expired (its lease is
    over) or dead. SESSION is held, lost, or none where the lease alone decides. Partitions that are not where the plan wants
    them are listed below: their owners finish what they run first.
    """
    with options.coordinator() as app:
        found = app.members(dead=dead)
        waiting = app.hand_overs()
    if options.as_json:
        output.json_object(
            {"members": [output.plain(one) for one in found], "hand_overs": [output.plain(one) for one in waiting]}
        )
        return
    output.table(
        (
            "MEMBER-ID",
            "CLIENT-ID",
            "STATIC-ID",
            "HOST",
            "PID",
            "STATE",
            "SESSION",
            "LEASE-LEFT-S",
            "PARTITIONS",
            "GROUPS",
            "STARTED",
        ),
        [
            (
                one.member_id,
                one.client_id,
                one.static_id,
                one.host,
                one.pid,
                one.state,
                one.session,
                round(one.lease_left_s, 1),
                one.partitions,
                one.groups,
                one.started_at,
            )
            for one in found
        ],
    )
    if waiting:
        output.line("")
        output.table(
            ("GROUP", "TOPIC", "PARTITION", "OWNER", "WANTED-BY", "WAITING-S"),
            [
                (
                    one.group,
                    one.topic,
                    one.partition,
                    one.client_id,
                    one.target_client_id,
                    round(one.waiting_s, 1),
                )
                for one in waiting
            ],
        )
    if not found:
        output.note("no consumer processes")


@members.command(
    examples=(
        "coordinator members drain 6f3c0a52-3d0e-4a51-9a53-1f1a8f0f2f7e",
        "coordinator members drain 6f3c0a52-3d0e-4a51-9a53-1f1a8f0f2f7e --undo",
    )
)
@click.argument("member_id", type=click.UUID)
@click.option("--undo", is_flag=True, help="Let it take part again.")
@pass_options
def drain(options: Options, member_id: str, *, undo: bool) -> None:
    """Take the work away from a process: it finishes what it runs, hands its partitions over, and gets no others.

    The process lives on, idle, until it is stopped or the drain is undone. A restart begins without it.
    """
    with options.coordinator() as app:
        app.drain(member_id, on=not undo)
    _done(options, member_id, "takes part again" if undo else "is draining")


@members.command(examples=("coordinator members evict 6f3c0a52-3d0e-4a51-9a53-1f1a8f0f2f7e",))
@click.argument("member_id", type=click.UUID)
@pass_options
def evict(options: Options, member_id: str) -> None:
    """End a process's rights at once: its partitions go to others, what it runs is delivered again.

    For a process that hangs. Nothing is charged to the messages that it was running. If it lives, it drops everything at its next
    heartbeat and comes back as a new member; to keep it out, stop it.
    """
    with options.coordinator() as app:
        app.evict(member_id)
    _done(options, member_id, "is evicted")


@members.command(examples=("coordinator members blocked", "coordinator members blocked --json"))
@pass_options
@click.pass_context
def blocked(ctx: click.Context, options: Options) -> None:
    """Show claims that nobody alive owns and nobody can take, because somebody holds their rows; and who that is.

    A prepared transaction has no process: it ends by COMMIT PREPARED or ROLLBACK PREPARED. Each claim is waited for, for up to a
    second. Exit code 1 if there are any.
    """
    with options.coordinator() as app:
        found = app.blocked_claims()
    rows = [(claim, holder) for claim in found for holder in claim.blockers or (None,)]
    if options.as_json:
        output.json_object({"blocked_claims": [output.plain(claim) for claim in found]})
    else:
        output.table(
            ("GROUP", "TOPIC", "PARTITION", "PID", "PREPARED", "ROLE", "APPLICATION", "STATE", "TRANSACTION-S"),
            [
                (
                    claim.group,
                    claim.topic,
                    claim.partition,
                    *(
                        (None,) * 6
                        if holder is None
                        else (
                            holder.pid,
                            holder.prepared,
                            holder.role,
                            holder.application_name,
                            holder.state,
                            None if holder.transaction_age_s is None else round(holder.transaction_age_s, 1),
                        )
                    ),
                )
                for claim, holder in rows
            ],
        )
    ctx.exit(exits.FINDING if found else exits.OK)


def _done(options: Options, member_id: str, what: str) -> None:
    if options.as_json:
        output.json_object({"member_id": str(member_id), "done": what})
    else:
        output.line(f"member {member_id} {what}")
