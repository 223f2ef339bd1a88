"""Several processes that run the same command: kept alive, told to stop, waited for.

What must not happen: a child that outlives its parent (it would go on as a member that nobody looks after), a crash at every
start that keeps a core busy, and a child that is started while the others are being stopped.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from coordinator.cli import exits
from coordinator.cli.output import note

_LOOK_S = 0.1
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 30.0
# Who has run so long before it crashed begins again with the shortest pause.
_STABLE_S = 60.0
# The third signal is for children that do not even end at the second.
_KILL_AT = 3


@dataclass(slots=True)
class _Place:
    """One of the processes, through all its lives."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    start_at_s: float = 0.0
    crashes: int = 0
    ended: bool = False


def supervise(
    command: Sequence[str], count: int, options_of: Callable[[int], Sequence[str]] = lambda _number: ()
) -> int:
    """Run the command in `count` processes until a signal comes or all have ended by themselves; return the exit code.

    Args:
        options_of: What each process is told besides, by its number from 1.

    Returns:
        0 if every process ended with 0 after the stop; 1 if one left something, or was killed; what a child said when it
        said that the call has to be changed, which a restart cannot cure.
    """
    reader, writer = os.pipe()
    supervisor = _Supervisor([*command, "--lifeline", str(reader)], reader, count, options_of)
    try:
        with _collected() as signals:
            return supervisor.run(signals)
    finally:
        supervisor.kill()
        os.close(reader)
        os.close(writer)


def end_with_parent(descriptor: int) -> None:
    """Watch the pipe that only the parent can write to: when its end closes, however it died, end as on SIGTERM."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(descriptor, 1024):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


class _Supervisor:
    def __init__(
        self, command: Sequence[str], lifeline: int, count: int, options_of: Callable[[int], Sequence[str]]
    ) -> None:
        self._command = command
        self._options_of = options_of
        self._lifeline = lifeline
        self._places = [_Place(number) for number in range(1, count + 1)]
        self._told = 0
        self._unclean = False
        self._fatal: int | None = None

    def run(self, signals: Sequence[int]) -> int:
        while not all(place.ended for place in self._places):
            self._pass_on(len(signals))
            for place in self._places:
                self._look(place)
            time.sleep(_LOOK_S)
        if self._fatal is not None:
            return self._fatal
        return exits.FINDING if self._unclean else exits.OK

    def kill(self) -> None:
        for place in self._places:
            if place.process is not None and place.process.poll() is None:
                place.process.kill()
                place.process.wait()

    def _pass_on(self, wanted: int) -> None:
        if self._fatal is not None:
            wanted = max(wanted, 1)
        if wanted <= self._told:
            return
        self._told = wanted
        for place in self._places:
            if place.process is None:
                place.ended = True
            elif place.process.poll() is None:
                # SIGTERM also for Ctrl-C: it means the same to a child, which has not seen the terminal's.
                place.process.kill() if wanted >= _KILL_AT else place.process.terminate()

    def _look(self, place: _Place) -> None:
        if place.ended:
            return
        now_s = time.monotonic()
        if place.process is None:
            if not self._told and now_s >= place.start_at_s:
                self._start(place, now_s)
            return
        code = place.process.poll()
        if code is None:
            return
        place.process = None
        if self._told:
            place.ended = True
            self._unclean = self._unclean or not self._is_clean(code)
        elif code == 0:
            place.ended = True  # it was told to stop from inside
        elif code == exits.USAGE:
            # The others will say the same, now or at their next start.
            place.ended = True
            self._fatal = code
        else:
            self._crashed(place, code, now_s)

    def _start(self, place: _Place, now_s: float) -> None:
        place.started_s = now_s
        place.process = subprocess.Popen(
            [*self._command, "--process", str(place.number), *self._options_of(place.number)],
            pass_fds=(self._lifeline,),
            stdin=subprocess.DEVNULL,
            # A group of its own, or Ctrl-C would reach it twice, from the terminal and from here, and cut it short.
            process_group=0,
        )

    def _crashed(self, place: _Place, code: int, now_s: float) -> None:
        place.crashes = 1 if now_s - place.started_s >= _STABLE_S else place.crashes + 1
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** (place.crashes - 1), _MAX_PAUSE_S)
        place.start_at_s = now_s + pause_s
        note(f"warning: process {place.number} {_ending(code)}; it is started again in {pause_s:g} s")

    def _is_clean(self, code: int) -> bool:
        # By the first SIGTERM itself: it had not come as far as to handle signals, and so had begun nothing.
        return code == 0 or (code == -signal.SIGTERM and self._told == 1)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


@contextlib.contextmanager
def _collected() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT while the body runs, instead of ending."""
    received: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
