"""The commands there are, found by walking the tree."""

from __future__ import annotations

import click

from coordinator.cli.main import cli


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(command)
    if not isinstance(command, click.Group):
        return [(path, command)]
    found = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        found += leaves(child, (*path, name))
    return found


def groups(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Group]]:
    if not isinstance(command, click.Group):
        return []
    context = click.Context(command)
    return [(path, command)] + [
        found
        for name in command.list_commands(context)
        for found in groups(command.get_command(context, name), (*path, name))
    ]


LEAVES = dict(leaves(cli))
GROUPS = dict(groups(cli))
