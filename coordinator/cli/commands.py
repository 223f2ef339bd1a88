"""The classes of our commands: loaded when they are asked for, with examples in their help, with the global options."""

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from coordinator.app import Coordinator
    from coordinator.configuration import Configuration
    from coordinator.observe.logs import Format

T = TypeVar("T")


class FiniteRange(click.FloatRange):
    """Numbers in a range; without NaN, which is in every one, and without infinity, which no clock reaches."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"found {value}, wanted a finite number", param, ctx)
        return number


@dataclass(slots=True)
class Options:
    """The global options; they are accepted before and after the name of a command."""

    dsn: str | None = None
    config: str | None = None
    schema: str | None = None
    embedded: bool = False
    as_json: bool = False
    verbose: bool = False
    log_format: "Format | None" = None
    log_level: str | None = None

    def address(self) -> str | None:
        """Return what was said about the database; None leaves it to the environment."""
        if not self.embedded:
            return self.dsn
        if self.dsn is not None:
            raise click.UsageError("--embedded and --dsn name two databases; give one of them")
        return "embedded:"

    def coordinator(self) -> "Coordinator":
        """Return the public API, for a with statement."""
        # Here and not above: psycopg alone takes longer to import than --help may take in all.
        from coordinator.app import Coordinator  # noqa: PLC0415
        from coordinator.cli.events import show_events  # noqa: PLC0415

        show_events(verbose=self.verbose, log_format=self.log_format, log_level=self.log_level)
        found = self.configured()
        return Coordinator(found.dsn(), schema=found.schema(), settings=found.settings())

    def configured(self) -> "Configuration":
        """Return all values in force: of the call, the environment, the file."""
        from coordinator.configuration import load  # noqa: PLC0415 - as above

        return load(self.config, dsn=self.address(), schema=self.schema)

    @contextmanager
    def server(self) -> Iterator[str]:
        """Yield a DSN of a server that runs; an embedded one is held until the end."""
        from coordinator.settings import EMBEDDED  # noqa: PLC0415

        address = self.configured().dsn()
        if not address.startswith(EMBEDDED):
            yield address
            return
        from coordinator.cli.events import show_events  # noqa: PLC0415 - heavy
        from coordinator.embedded import data_dir_of, shared_server  # noqa: PLC0415 - only for who asks for it

        show_events(verbose=self.verbose, log_format=self.log_format, log_level=self.log_level)
        with shared_server(data_dir_of(address)) as server:
            yield server.dsn

    @contextmanager
    def connected(self) -> "Iterator[tuple[Any, str]]":
        """Yield a connection and the schema's name, for what has no place in the public API; the protocol is checked."""
        from coordinator.db.connect import connect  # noqa: PLC0415 - heavy
        from coordinator.db.drive import drive  # noqa: PLC0415 - the same
        from coordinator.db.schema import protocol_checked  # noqa: PLC0415 - the same

        schema = self.schema_name()
        with self.server() as dsn, connect(dsn, 10.0, "coordinator cli", prepare=False) as connection:
            drive(protocol_checked(schema), connection, schema)
            yield connection, schema

    def schema_name(self) -> str:
        """Return the name of the schema that is meant."""
        return self.configured().schema()


pass_options = click.make_pass_decorator(Options, ensure=True)


def global_options(*, hidden: bool) -> list[click.Option]:
    """Return the global options, which write into the Options of the call and reach no command as parameters."""
    return [
        _option(
            "dsn",
            ["--dsn"],
            "URL or conninfo string of the database; else COORDINATOR_DSN, DATABASE_URL, PG*.",
            hidden=hidden,
            metavar="DSN",
        ),
        _option(
            "config",
            ["--config"],
            "A configuration file; else COORDINATOR_CONFIG, else coordinator.toml in the working directory.",
            hidden=hidden,
            metavar="FILE",
        ),
        _option(
            "schema",
            ["--schema"],
            "Schema of the installation; else COORDINATOR_SCHEMA, else coordinator.",
            hidden=hidden,
            metavar="NAME",
        ),
        _option(
            "embedded",
            ["--embedded"],
            "Use the embedded server in its default folder; start it if need be.",
            hidden=hidden,
            is_flag=True,
        ),
        _option("as_json", ["--json"], "Print JSON for programs, not tables for people.", hidden=False, is_flag=True),
        _option(
            "verbose",
            ["--verbose"],
            "Show what happens, and tracebacks of errors, on standard error.",
            hidden=hidden,
            is_flag=True,
        ),
    ]


class Command(click.Command):
    """A command that takes the global options too and shows examples in its help."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples
        self.params.extend(global_options(hidden=True))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


class _Suggesting(click.Group):
    """A group that names the command that was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if close and "Did you mean" not in error.message:
                raise click.UsageError(f"{error.message} Did you mean {close[0]}?", ctx) from None
            raise


class Group(_Suggesting):
    """A group of our commands."""

    command_class = Command

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples
        self.params.extend(global_options(hidden=True))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


class Lazy(NamedTuple):
    """Where a command is, and what the list of commands says of it: the list is shown without an import."""

    path: str
    summary: str


class LazyGroup(_Suggesting):
    """A group that imports a command's module when the command is used, and none for its own help."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.lazy = lazy
        self.examples = examples
        self.params.extend(global_options(hidden=False))

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.path.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command), entry.path
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.lazy.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    """Write them as they are: click would rewrap them as prose."""
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


def _option(name: str, flags: list[str], text: str, *, hidden: bool, **attributes: Any) -> click.Option:
    return click.Option(
        [*flags, name],
        help=text,
        hidden=hidden,
        expose_value=False,
        callback=_store(name),
        # Before the command's own parameters: what their callbacks print may depend on --json.
        is_eager=True,
        **attributes,
    )


def _store(name: str) -> Callable[[click.Context, click.Parameter, T], T]:
    def store(ctx: click.Context, _parameter: click.Parameter, value: T) -> T:
        # Not given here leaves what was said before the name of the command.
        if value is not None and value is not False:
            setattr(ctx.ensure_object(Options), name, value)
        return value

    return store
