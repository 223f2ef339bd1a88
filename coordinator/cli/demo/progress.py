"""What people see while the demo runs: on a terminal only."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """Lines and bars on standard error, where they do not mix with the result; silent if that is no terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bars = Bars(
            TextColumn("{task.description:>8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bar_by_group: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, line: str) -> None:
        if self._console.is_terminal:
            self._console.print(f"[dim]{line}[/dim]")

    def begin(self, message_count: int, groups: Iterable[str]) -> None:
        """Show one bar per group."""
        self._bar_by_group = {group: self._bars.add_task(group, total=message_count) for group in groups}

    def show(self, group: str, settled_count: int) -> None:
        if group in self._bar_by_group:
            self._bars.update(self._bar_by_group[group], completed=settled_count)
