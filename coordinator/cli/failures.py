"""What ends a command early, as text on standard error and an exit code; never a traceback, unless asked for."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from coordinator.cli import exits
from coordinator.cli.commands import Options
from coordinator.errors import CoordinatorError


@contextmanager
def told(ctx: click.Context, options: Options) -> Iterator[None]:
    """Run a command; end with the exit code of what went wrong in it. click's own exceptions pass through."""
    try:
        yield
        # Now, and not at the interpreter's exit, where it is too late to choose how to end.
        sys.stdout.flush()
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        ctx.exit(exits.INTERRUPTED)
    except BrokenPipeError as error:
        # Only our output can raise it: libpq's sockets report UnavailableError.
        ctx.exit(unwritten(error))
    except Exception as error:  # noqa: BLE001 - the outermost level: whatever it is, it has to be told
        known = _known(error)
        _show(known, verbose=options.verbose)
        if isinstance(error, OSError):
            _discard_stdout()  # it may have been the disk that our output goes to
        ctx.exit(exits.code_of(known))


def unwritten(error: OSError) -> int:
    """Tell of output that could not be written, and return the exit code."""
    _discard_stdout()
    if isinstance(error, BrokenPipeError):
        return exits.OK  # the reader has what it wanted
    for line in lines_of(error):
        click.echo(line, err=True)
    return exits.FAILED


def lines_of(error: BaseException) -> list[str]:
    """Return what to tell of an error: the message, then detail and hint where there are some."""
    if isinstance(error, CoordinatorError):
        lines = [f"error: {error}", error.detail or "", f"hint: {error.hint}" if error.hint else ""]
        return [line for line in lines if line]
    if isinstance(error, OSError):
        return [f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else "")]
    module = sys.modules.get("psycopg")
    if module is not None and isinstance(error, module.Error):
        return [f"error: the database says: {str(error).strip()}"]
    return [
        f"error: unexpected {type(error).__name__}: {error}",
        "hint: this is a bug; run it again with --verbose and report what it prints",
    ]


def _show(error: BaseException, *, verbose: bool) -> None:
    if verbose:
        click.echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    for line in lines_of(error):
        click.echo(line, err=True)


def _known(error: Exception) -> Exception:
    """Return our error for one of psycopg's that has come through as it is, such as at the end of a with block."""
    module = sys.modules.get("psycopg")
    if module is None or not isinstance(error, module.Error):
        return error
    from coordinator.db.translate import translate  # noqa: PLC0415 - imports psycopg, which is there already

    return translate(error) or error


def _discard_stdout() -> None:
    """Let what is still buffered go nowhere: at its exit the interpreter would write it again, and fail again."""
    with suppress(OSError):  # tests replace it by an object without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
