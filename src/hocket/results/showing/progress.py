"""The live display of a run, which redraws a few times a second.

On a terminal it is a block of lines that stays at the bottom; in a notebook one output below the
cell; elsewhere (a log, CI) it is a plain line now and then. Counting is cheap and happens on the
engine's thread; drawing is throttled."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from hocket.core.events import (
    AttemptFailed,
    Event,
    Noted,
    RunEnded,
    SiteState,
    SpecLearned,
    StartsCompared,
)
from hocket.results.exactness import unseeded_sentence
from hocket.results.showing.tally import Speed, Tally
from hocket.system.text import counted, printable
from hocket.system.waits import awaited

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

REDRAWS_PER_S = 4
PLAIN_EVERY_S = 10.0
"""Seconds between two lines where there is no terminal to redraw."""
ERRORS_SHOWN = 3
SITES_SHOWN = 8
"""Sites that have a line of their own."""
_LOOK_S = 0.2
"""Seconds between two looks at what is awaited before a run begins."""


def start_live(stream: TextIO, render: Callable[[], RenderableType]) -> Live:
    """A block at the foot of a terminal that is drawn again several times a second."""
    from rich.live import Live

    from hocket.results.terminal import Console

    live = Live(
        get_renderable=render,
        console=Console(file=stream),
        refresh_per_second=REDRAWS_PER_S,
        transient=True,
    )
    live.start()
    return live


class ProgressDisplay:
    """Follows a run on a terminal or in a log. A context manager; closing twice is safe."""

    def __init__(
        self, *, stream: TextIO | None = None, quiet: bool = False, age_s: float = 0.0
    ) -> None:
        """`age_s` is for how many seconds the user has been waiting already."""
        self.tally = Tally()
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._run_ended = time.perf_counter()
        self._start = self._run_ended - age_s
        self._live: Live | None = None
        self._console: Console | None = None
        self._last_line = (self._start, "")
        self._errors: Counter[str] = Counter()
        self._notes: set[str] = set()
        self._prepared = threading.Event()
        """Set once the run's own events tell what goes on."""

    def __enter__(self) -> ProgressDisplay:
        if not self._quiet and self._stream.isatty():
            self._live = start_live(self._stream, self._render)
            self._console = self._live.console
        elif not self._quiet:
            self._plain_line()
            threading.Thread(target=self._tell_waits, name="hocket-waits", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on(self, event: Event) -> None:
        if not isinstance(event, Noted):
            self._prepared.set()
        self.tally.on(event)
        if isinstance(event, RunEnded):
            self._run_ended = time.perf_counter()
        if self._quiet:
            return
        self._tell(event)
        if self._live is None:
            self._plain_line()

    def _tell(self, event: Event) -> None:
        """Say what stays in sight: errors and notes."""
        if isinstance(event, AttemptFailed):
            self._show_error(event)
        elif isinstance(event, SpecLearned):
            for note in event.spec.notes:
                self._note(note)
        elif isinstance(event, Noted):
            self._note(event.text)
        elif isinstance(event, StartsCompared) and event.differs:
            self._note(unseeded_sentence([event.suite]))

    def close(self) -> None:
        """Take the display away; what it said in full stays."""
        self._prepared.set()
        if self._live is not None:
            self._live.stop()
            self._live = None
        hidden = sum(self._errors.values()) - min(len(self._errors), ERRORS_SHOWN)
        if hidden and not self._quiet:
            attempts = counted(hidden, "more failed attempt")
            self._say(f"{attempts} not shown; the report has each error.")
        self._errors.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Take the display away while something else is printed."""
        self.close()
        yield
        self.__enter__()

    def _show_error(self, event: AttemptFailed) -> None:
        # Process numbers and addresses differ between otherwise equal errors.
        kind = re.sub(r"0x[0-9a-f]+|\d+", "#", event.error)
        self._errors[kind] += 1
        if self._errors[kind] == 1 and len(self._errors) <= ERRORS_SHOWN:
            then = "it runs again" if event.again else "it counts as an error"
            self._say(
                f"Attempt {event.attempt + 1} at {event.trial.id} failed; {then}:\n"
                f"{event.error.rstrip()}"
            )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self._say(f"note: {text}")

    def _say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(printable(text) + "\n")
            self._stream.flush()

    def _tell_waits(self) -> None:
        """Say what is awaited until the run has begun, in lines."""
        while not self._prepared.wait(_LOOK_S):
            self._plain_line()

    def _plain_line(self) -> None:
        at, phase = self._last_line
        now = time.perf_counter()
        is_preparing = self.tally.phase == "preparing"
        current = lines(self.tally)[0] if is_preparing else self.tally.phase
        if current != phase or now - at >= PLAIN_EVERY_S:
            self._last_line = (now, current)
            self._say(self.line(now))

    def line(self, now: float) -> str:
        """The state of the run now, in a line with its clock."""
        left = self._left_s
        told = lines(self.tally) + ([] if left is None else [f"{clock(left)} left"])
        return f"[{now - self._start:7.1f} s] {', '.join(told)}"

    @property
    def _left_s(self) -> float | None:
        """Seconds until all is done: the trials, and after them the videos."""
        tally = self.tally
        if tally.phase in ("done", "interrupted"):
            return None
        done, total = tally.rendered
        if total:
            if not done:
                return None
            return (time.perf_counter() - self._run_ended) / done * (total - done)
        return tally.left_s

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tally, elapsed = self.tally, time.perf_counter() - self._start
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right", no_wrap=True)
        done, total = tally.rendered if tally.rendered[1] else (tally.done, tally.planned)
        bar.add_row(
            ProgressBar(total=max(total, 1), completed=done),
            f"{clock(elapsed)} gone, {clock(self._left_s)} left",
        )
        first, *others = lines(tally)
        return Group(bar, Text(first, style="bold"), *(Text(line, style="dim") for line in others))


def lines(tally: Tally) -> list[str]:
    """The state of a run in a few phrases, the most important first."""
    waits = f"waiting for {' and '.join(awaited())}" if awaited() else ""
    if tally.phase == "preparing":
        return [waits or "preparing"]
    first = f"{tally.done}/{tally.planned} episodes"
    rate = tally.rate
    if rate.value is not None and rate.interval is not None:
        low, high = 100 * rate.interval.low, 100 * rate.interval.high
        first += f", {100 * rate.value:.1f} % succeed [{low:.0f}, {high:.0f}]"
    if rate.errors or tally.failed_attempts:
        first += f", {counted(rate.errors, 'error')}, "
        first += f"{counted(tally.failed_attempts, 'attempt')} lost"
    found = [first]
    speed = tally.speed()
    if tally.sites and tally.phase != "filming":
        found += _site_lines(tally.sites, speed)
    elif tally.phase == "starting workers" and not tally.lanes:
        found.append("no site has joined yet")
    elif tally.phase == "starting workers" and tally.lanes_up < tally.lanes:
        found.append(f"starting workers: {tally.lanes_up} of {tally.lanes} lanes are up")
    elif tally.phase == "starting workers":
        found.append(f"all {tally.lanes} lanes are up; building and resetting their envs")
    elif tally.phase == "warming up the policy":
        found.append("warming up the policy: its first calls are timed at several batch sizes")
    elif tally.phase == "filming":
        done, total = tally.rendered
        found.append(f"filming: {done} of {total} episodes are done; Ctrl-C leaves out the others")
    elif speed is not None:
        batch = "-" if speed.mean_batch is None else f"{speed.mean_batch:.1f}"
        found.append(
            f"{speed.steps_per_s:,.0f} env steps/s, mean batch {batch} of {tally.lanes} lanes"
        )
        cores = speed.cores_busy
        found.append(
            ("" if cores is None else f"cores {100 * cores:.0f} % busy, ")
            + f"policy {100 * speed.policy_busy:.0f} % busy"
        )
    return [*found, waits] if waits else found


def _site_lines(sites: Sequence[SiteState], speed: Speed | None) -> list[str]:
    """How many sites there are and how fast they go together, then what each does."""
    lanes = sum(site.lanes for site in sites)
    ready = sum(site.lanes > 0 for site in sites)
    whole = f"{ready} of {counted(len(sites), 'site')} ready, with {counted(lanes, 'lane')}"
    if speed is not None:
        whole += f"; {speed.episodes_per_s:,.2f} episodes/s, {speed.steps_per_s:,.0f} env steps/s"
    told = [
        # An attempt whose end has not come yet leaves its lane to the next one.
        f"{site.name}: {min(site.running, site.lanes)} of {counted(site.lanes, 'lane')} busy, "
        + counted(site.episodes, "episode")
        + (f"; {site.doing}" if site.doing else "")
        if site.lanes
        else f"{site.name}: {site.doing}"
        for site in sites[:SITES_SHOWN]
    ]
    more = len(sites) - SITES_SHOWN
    return [whole, *told, *([f"and {more} more sites"] if more > 0 else [])]


def clock(seconds: float | None) -> str:
    """A time span as text, such as `1:02:03` or `2:03`; a dash where it is unknown."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def open_progress(*, wanted: bool | None) -> ProgressDisplay | None:
    """What shows progress here: in a notebook, on a terminal, or in lines of a log where it is
    wanted all the same. None where nothing is to be shown; it is to be entered as a context."""
    if wanted is False:
        return None
    if _in_notebook():
        return NotebookProgress()
    return ProgressDisplay() if wanted or sys.stderr.isatty() else None


class NotebookProgress(ProgressDisplay):
    """Follows a run below the cell that began it: one output, which is replaced."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self._told: list[str] = []
        self._handle: DisplayHandle | None = None
        self._is_closed = threading.Event()

    def __enter__(self) -> ProgressDisplay:
        from IPython.display import display

        self._handle = display(_Text(self._text()), display_id=True)
        threading.Thread(target=self._redraw, name="hocket-notebook", daemon=True).start()
        return self

    def on(self, event: Event) -> None:
        super().on(event)
        self._tell(event)

    def close(self) -> None:
        """Leave the last state and what was told in sight. Twice is safe."""
        if not self._is_closed.is_set():
            self._is_closed.set()
            self._draw()
        super().close()

    def _say(self, text: str) -> None:
        self._told.append(printable(text))

    def _redraw(self) -> None:
        while not self._is_closed.wait(1 / REDRAWS_PER_S):
            self._draw()

    def _draw(self) -> None:
        if self._handle is not None:
            self._handle.update(_Text(self._text()))

    def _text(self) -> str:
        return "\n".join([*self._told, self.line(time.perf_counter())])


class _Text(str):
    """Plain text as an output of a cell, without the quotes that a string would have there."""

    __slots__ = ()
    __repr__ = str.__str__


def _in_notebook() -> bool:
    """True if a kernel runs this. IPython is not imported where nobody else has."""
    found = sys.modules.get("IPython")
    shell = found.get_ipython() if found is not None else None
    return shell is not None and hasattr(shell, "kernel")
