"""Write docs/cli.md from the commands themselves.

PYTHONPATH=. python scripts/cli_page.py             write it
PYTHONPATH=. python scripts/cli_page.py --check     exit 1 if it is not what the commands say
"""

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from coordinator.cli import exits
from coordinator.cli.main import cli

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """# Command line

Made by `scripts/cli_page.py` from the commands; `coordinator COMMAND --help` says the same.

**Output.** Data goes to standard output, everything else to standard error. Tables are for people; where the output is
no terminal, each row is one line, with two spaces or more between columns. `--json` is for programs: one object, or one
object a line for messages, dead letters, `lag` and queries. Keys are stable snake_case, offsets are exact whole numbers
(a reader that keeps numbers as 64-bit floats loses them beyond 2^53). Colours and bold type are for terminals, and
`NO_COLOR` takes them away. A pipe that is closed early (`| head`) is no error. `--watch SECONDS` shows a thing again and
again until Ctrl-C.

**Configuration.** A value comes from the call, else from a variable, else from `coordinator.toml`, else it is the default; see
[operations.md](operations.md#configuration). Global options may stand before or after the name of a command.

**Completion.** For bash, zsh and fish, in the start-up file of the shell:

```sh
eval "$(_COORDINATOR_COMPLETE=bash_source coordinator)"
eval "$(_COORDINATOR_COMPLETE=zsh_source coordinator)"
_COORDINATOR_COMPLETE=fish_source coordinator | source
```

## Exit codes

| code | |
|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD + "".join(_codes()), "\n## Global options\n\n", _options(cli)]
    parts.extend(text for name in cli.list_commands(click.Context(cli)) for text in _command(cli, (name,)))
    return "".join(parts).rstrip("\n") + "\n"


def _codes() -> Iterator[str]:
    text = inspect.getdoc(exits) or ""
    code, words = "", ""
    for line in text.splitlines():
        if line.startswith("====") or not line.startswith(" "):
            continue
        number, rest = line[:4].strip(), line[4:].strip()
        if number:
            if code:
                yield f"| {code} | {words} |\n"
            code, words = number, rest
        else:
            words += " " + rest
    yield f"| {code} | {words} |\n"


def _command(parent: click.Group, path: tuple[str, ...]) -> Iterator[str]:
    command = parent.get_command(click.Context(parent), path[-1])
    assert command is not None
    name = " ".join(("coordinator", *path))
    yield f"\n{'##' if len(path) == 1 else '###'} `{name}`\n\n"
    yield _prose(command.help or "")
    if not isinstance(command, click.Group):
        yield from _call(command, name)
        return
    if command.invoke_without_command:
        yield from _call(command, name)
    for child in command.list_commands(click.Context(command)):
        yield from _command(command, (*path, child))


def _call(command: click.Command, name: str) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=name)))
    yield f"\n```text\n{name} {usage}\n```\n"
    options = _options(command)
    if options:
        yield "\n" + options
    yield "\n```sh\n" + "\n".join(getattr(command, "examples", ())) + "\n```\n"


def _options(command: click.Command) -> str:
    context = click.Context(command)
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None and (command is cli or parameter.name != "as_json"):
            flags, text = (" ".join(part.split()).replace("|", "\\|") for part in record)
            rows.append(f"| `{flags}` | {text} |\n")
    return "| option | |\n|---|---|\n" + "".join(rows) if rows else ""


def _prose(text: str) -> str:
    paragraphs = inspect.cleandoc(text).replace("\b\n", "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    text = page()
    if arguments.check:
        same = PAGE.exists() and PAGE.read_text("utf-8") == text
        print("docs/cli.md is what the commands say" if same else "docs/cli.md is old: python scripts/cli_page.py")
        return 0 if same else 1
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
