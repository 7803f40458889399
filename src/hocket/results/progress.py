"""The live display of a run: a reader that counts events and redraws a few times a second.

On a terminal it is a block of lines that stays at the bottom; elsewhere (a log, CI) it is a plain
line now and then. Counting is cheap and happens on the engine's thread; drawing is throttled.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from hocket.core.data import Outcome
from hocket.core.events import (
    AttemptFailed,
    BatchInferred,
    ChunksExecuted,
    EpisodeFilmed,
    EpisodesEnded,
    Event,
    LanesReady,
    Noted,
    RunEnded,
    RunStarted,
    SpecLearned,
    WorkerChanged,
)
from hocket.results import stats

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

REDRAWS_PER_S = 4
PLAIN_EVERY_S = 10.0
WINDOW_S = 10.0
"""Speeds are of the last seconds, so that a slow start does not weigh on them for ever."""
ERRORS_SHOWN = 3


@dataclass(slots=True)
class Tally:
    """What the events so far add up to."""

    phase: str = "preparing"
    planned: int = 0
    lanes: int = 0
    cores: int = 1
    concurrency: int = 1
    workers_up: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    carried: int = 0
    """Episodes that an earlier part of the run ended: done, but they say nothing of the speed."""
    failed_attempts: int = 0
    filmed: tuple[int, int] = (0, 0)
    """Episodes filmed so far, and in all, once the run has ended."""
    began: float | None = None
    """When the first batch was inferred: speeds count from here."""
    now: float = 0.0
    recent: deque[_Slice] = field(default_factory=deque)

    def add(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, BatchInferred):
            if self.began is None:
                self.began, self.phase = event.began, "running"
            # Padding and failed rows are work for the policy, but no chunks.
            chunks = len(event.delivered) - event.delivered.count(None)
            self._slice(event.time).add_batch(chunks, event.ended - event.began)
        elif isinstance(event, ChunksExecuted):
            self._slice(event.time).add_steps(sum(event.steps), sum(event.busy))
        elif isinstance(event, EpisodesEnded):
            self.now = max(self.now, event.time)
            self.outcomes.update(episode.outcome for episode in event.episodes)
        elif isinstance(event, RunStarted):
            self.phase, self.planned = "starting workers", len(event.trials)
            self.lanes, self.cores = event.lanes, event.cores
            self.concurrency = event.policy.concurrency
            self.outcomes.update(episode.outcome for episode in event.done)
            self.carried = len(event.done)
        elif isinstance(event, WorkerChanged):
            self.workers_up += {"up": 1, "lost": -1, "recycled": -1}.get(event.state, 0) * len(
                event.lanes
            )
        elif isinstance(event, LanesReady) and self.began is None:
            self.phase = "warming up the policy"
        elif isinstance(event, AttemptFailed):
            self.failed_attempts += 1
        elif isinstance(event, RunEnded):
            self.phase = "done" if event.complete else "interrupted"
        elif isinstance(event, EpisodeFilmed):
            self.phase, self.filmed = "filming", (event.done, event.total)

    def _slice(self, at: float) -> _Slice:
        """The current half second's sums; old ones fall out of the window."""
        self.now = max(self.now, at)
        if not self.recent or at - self.recent[-1].start > 0.5:
            self.recent.append(_Slice(start=at))
            while self.recent[0].start < at - WINDOW_S:
                self.recent.popleft()
        return self.recent[-1]

    @property
    def done(self) -> int:
        return sum(self.outcomes.values())

    @property
    def rate(self) -> stats.Rate:
        """Success so far, errors apart."""
        won = self.outcomes[Outcome.SUCCESS]
        return stats.rate(
            won, won + self.outcomes[Outcome.FAILURE], errors=self.outcomes[Outcome.ERROR]
        )

    @property
    def speed(self) -> Speed | None:
        """Of the last seconds; None before there is anything to tell."""
        span = self.now - self.recent[0].start if len(self.recent) > 1 else 0.0
        if span <= 0:
            return None
        batches = sum(part.batches for part in self.recent)
        chunks = sum(part.chunks for part in self.recent)
        return Speed(
            steps_per_s=sum(part.steps for part in self.recent) / span,
            mean_batch=chunks / batches if batches else None,
            cores_busy=min(1.0, sum(p.worked_s for p in self.recent) / span / self.cores),
            policy_busy=min(1.0, sum(p.inferred_s for p in self.recent) / span / self.concurrency),
        )

    @property
    def left_s(self) -> float | None:
        """Seconds until the planned trials are done, at the pace since the first batch."""
        ended_here = self.done - self.carried
        if self.began is None or not ended_here:
            return None
        return (self.now - self.began) / ended_here * (self.planned - self.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a run goes now."""

    steps_per_s: float
    mean_batch: float | None
    cores_busy: float
    policy_busy: float


@dataclass(slots=True, kw_only=True)
class _Slice:
    """Sums over a short stretch of time."""

    start: float
    steps: int = 0
    chunks: int = 0
    batches: int = 0
    worked_s: float = 0.0
    inferred_s: float = 0.0

    def add_batch(self, chunks: int, seconds: float) -> None:
        self.chunks += chunks
        self.batches += 1
        self.inferred_s += seconds

    def add_steps(self, steps: int, seconds: float) -> None:
        self.steps += steps
        self.worked_s += seconds


def start_live(stream: TextIO, render: Callable[[], RenderableType]) -> Live:
    """A block at the foot of a terminal that is drawn again several times a second."""
    from rich.console import Console
    from rich.live import Live

    live = Live(
        get_renderable=render,
        console=Console(file=stream),
        refresh_per_second=REDRAWS_PER_S,
        transient=True,
    )
    live.start()
    return live


class Progress:
    """Follows a run on a terminal or in a log. A context manager; closing twice is safe."""

    def __init__(self, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        self.tally = Tally()
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._start = self._rolled = time.perf_counter()
        self._live: Live | None = None
        self._console: Console | None = None
        self._last_line = (self._start, "")
        self._errors: Counter[str] = Counter()
        self._notes: set[str] = set()

    def __enter__(self) -> Progress:
        if not self._quiet and self._stream.isatty():
            self._live = start_live(self._stream, self._render)
            self._console = self._live.console
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def on(self, event: Event) -> None:
        """Count an event; draw if it is time."""
        self.tally.add(event)
        if isinstance(event, RunEnded):
            self._rolled = time.perf_counter()
        if self._quiet:
            return
        if isinstance(event, AttemptFailed):
            self._show_error(event)
        elif isinstance(event, SpecLearned):
            for note in event.spec.notes:
                self._note(note)
        elif isinstance(event, Noted):
            self._note(event.text)
        if self._live is None:
            self._plain_line()

    def close(self) -> None:
        """Take the display away; what it said in full stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        hidden = sum(self._errors.values()) - min(len(self._errors), ERRORS_SHOWN)
        if hidden and not self._quiet:
            attempts = counted(hidden, "more failed attempt")
            self._say(f"{attempts} not shown; the report has each error.")
        self._errors.clear()

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
            self._stream.write(text + "\n")
            self._stream.flush()

    def _plain_line(self) -> None:
        at, phase = self._last_line
        now = time.perf_counter()
        if self.tally.phase != phase or now - at >= PLAIN_EVERY_S:
            self._last_line = (now, self.tally.phase)
            left = self._left_s
            told = lines(self.tally) + ([] if left is None else [f"{clock(left)} left"])
            self._say(f"[{now - self._start:7.1f} s] {', '.join(told)}")

    @property
    def _left_s(self) -> float | None:
        """Seconds until all is done: the trials, and after them the films."""
        tally = self.tally
        if tally.phase in ("done", "interrupted"):
            return None
        done, total = tally.filmed
        if done:
            return (time.perf_counter() - self._rolled) / done * (total - done)
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
        bar.add_row(
            ProgressBar(total=max(tally.planned, 1), completed=tally.done),
            f"{clock(elapsed)} gone, {clock(self._left_s)} left",
        )
        first, *others = lines(tally)
        return Group(bar, Text(first, style="bold"), *(Text(line, style="dim") for line in others))


def lines(tally: Tally) -> list[str]:
    """The state of a run in a few phrases, the most important first."""
    if tally.phase == "preparing":
        return ["preparing: checking that env and policy fit"]
    first = f"{tally.done}/{tally.planned} episodes"
    rate = tally.rate
    if rate.value is not None and rate.interval is not None:
        low, high = 100 * rate.interval.low, 100 * rate.interval.high
        first += f", {100 * rate.value:.1f} % succeed [{low:.0f}, {high:.0f}]"
    if rate.errors or tally.failed_attempts:
        first += f", {counted(rate.errors, 'error')}, "
        first += f"{counted(tally.failed_attempts, 'attempt')} lost"
    found = [first]
    speed = tally.speed
    if tally.phase == "starting workers" and tally.workers_up < tally.lanes:
        found.append(f"starting workers: {tally.workers_up} of {tally.lanes} lanes are up")
    elif tally.phase == "starting workers":
        found.append(f"all {tally.lanes} lanes are up; building and resetting their envs")
    elif tally.phase == "warming up the policy":
        found.append("warming up the policy: its first calls are timed at several batch sizes")
    elif tally.phase == "filming":
        found.append(f"filming: {tally.filmed[0]} of {tally.filmed[1]} episodes are done")
    elif speed is not None:
        batch = "-" if speed.mean_batch is None else f"{speed.mean_batch:.1f}"
        found.append(
            f"{speed.steps_per_s:,.0f} env steps/s, mean batch {batch} of {tally.lanes} lanes"
        )
        found.append(
            f"cores {100 * speed.cores_busy:.0f} % busy, "
            f"policy {100 * speed.policy_busy:.0f} % busy"
        )
    return found


def counted(number: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clock(seconds: float | None) -> str:
    """`1:02:03`, `2:03`; a dash where unknown."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
