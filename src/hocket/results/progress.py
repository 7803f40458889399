"""What the events of a run add up to, and its live display, which redraws a few times a second.

On a terminal it is a block of lines that stays at the bottom; elsewhere (a log, CI) it is a plain
line now and then. Counting is cheap and happens on the engine's thread; drawing is throttled.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

from hocket.core.data import Episode, Outcome
from hocket.core.events import (
    AttemptFailed,
    BatchInferred,
    ChunksExecuted,
    EpisodeFilmed,
    EpisodesEnded,
    EpisodesSealed,
    Event,
    LanesReady,
    Noted,
    RunEnded,
    RunStarted,
    SitesChanged,
    SiteState,
    SpecLearned,
    WorkDone,
    WorkerChanged,
)
from hocket.core.text import printable
from hocket.results import stats
from hocket.results.report import Throughput
from hocket.results.sites import site_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

WINDOW_S = 10.0
"""Current speeds cover this many seconds, so that a slow start does not weigh on them for ever.
Chosen by hand; no benchmark row."""
REDRAWS_PER_S = 4
PLAIN_EVERY_S = 10.0
"""Seconds between two lines where there is no terminal to redraw."""
ERRORS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a run goes now; shares of busy time are 0 to 1."""

    steps_per_s: float
    mean_batch: float | None
    cores_busy: float
    policy_busy: float


@dataclass(slots=True)
class _Work:
    """What was done until `time`: the sums of WorkDone, which change with every batch."""

    time: float = 0.0
    steps: int = 0
    executed: int = 0
    delivered: int = 0
    batches: int = 0
    worked_s: float = 0.0
    inferred_s: float = 0.0


class Tally:
    """A reader that adds up a run's events."""

    def __init__(self, concurrency: int | None = None) -> None:
        """`concurrency` is how many batches can be inferred at once; None takes what the policy
        says of itself when the run starts."""
        self._concurrency = concurrency
        self.phase = "preparing"
        self.planned = 0
        self.lanes = 0
        self.cores = 1
        self.lanes_up = 0
        """Lanes whose worker is up."""
        self.outcomes: Counter[Outcome] = Counter()
        """Counts the trials that have ended, those of earlier parts of the run included."""
        self.carried = 0
        """Episodes that an earlier part of the run ended: done, but they say nothing of speed."""
        self.failed_attempts = 0
        self.rendered = (0, 0)
        """Episodes that have their video, and all that are to have one, once the run has ended."""
        self.complete = False
        self._unmade = 0
        self.sites: Sequence[SiteState] = ()
        """The machines, where the run is on several."""
        self._sealed: dict[str, Episode] = {}
        self._unsealed: dict[str, Outcome] = {}
        """Trials that ended and whose files are not sealed: what they recorded may yet be lost, and
        then they run again."""
        self._began: float | None = None
        """When the first batch was sent to the policy: speeds count from here."""
        self._last = 0.0
        """When a batch or a chunk was last done; waiting for files at the end is no work."""
        self._now = 0.0
        self._total = _Work()
        self._recent: deque[_Work] = deque()

    def on(self, event: Event) -> None:
        if isinstance(event, BatchInferred):
            if self._began is None:
                self._began, self.phase = event.began, "running"
            self._mark(event.time)
            self._total.delivered += len(event.delivered) - event.delivered.count(None)
            self._total.batches += 1
            self._total.inferred_s += event.ended - event.began
        elif isinstance(event, ChunksExecuted):
            self._mark(event.time)
            self._total.executed += len(event.lanes)
            self._total.steps += sum(event.steps)
            self._total.worked_s += sum(event.busy)
        elif isinstance(event, EpisodesEnded):
            self._now = max(self._now, event.time)
            self.outcomes.update(episode.outcome for episode in event.episodes)
            self._unsealed.update({e.trial.id: e.outcome for e in event.episodes})
        elif isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                self._unsealed.pop(episode.trial.id, None)
                self._sealed[episode.trial.id] = episode
        elif isinstance(event, AttemptFailed):
            self.failed_attempts += 1
            if (lost := self._unsealed.pop(event.trial.id, None)) is not None:
                self.outcomes[lost] -= 1
        elif isinstance(event, LanesReady) and self._began is None:
            self.phase = "warming up the policy"
        elif isinstance(event, WorkerChanged):
            change = {"up": 1, "lost": -1, "recycled": -1}.get(event.state, 0)
            self.lanes_up += change * len(event.lanes)
        elif isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, RunEnded):
            self.complete = event.complete
            self._unmade = int(event.notes.get("unmade", 0))
            self.phase = "done" if event.complete else "interrupted"
        elif isinstance(event, SitesChanged):
            self._hear_sites(event)
        elif isinstance(event, EpisodeFilmed):
            self.phase, self.rendered = "filming", (event.done, event.total)

    def close(self) -> None: ...

    @property
    def episodes(self) -> Sequence[Episode]:
        """All that have ended and whose files are sealed, earlier parts of the run included."""
        return list(self._sealed.values())

    @property
    def done(self) -> int:
        return sum(self.outcomes.values())

    @property
    def rate(self) -> stats.Rate:
        won = self.outcomes[Outcome.SUCCESS]
        return stats.rate(
            won, won + self.outcomes[Outcome.FAILURE], errors=self.outcomes[Outcome.ERROR]
        )

    @property
    def left_s(self) -> float | None:
        """Seconds until the planned trials are done, at the pace since the first batch."""
        ended_here = self.done - self.carried
        if self._began is None or not ended_here:
            return None
        return (self._now - self._began) / ended_here * (self.planned - self.done)

    def speed(self) -> Speed | None:
        """The speed of the last WINDOW_S seconds; None before there is anything to tell."""
        span = self._now - self._recent[0].time if len(self._recent) > 1 else 0.0
        if span <= 0:
            return None
        before, now = self._recent[0], self._total
        batches = now.batches - before.batches
        inferred_s = now.inferred_s - before.inferred_s
        return Speed(
            steps_per_s=(now.steps - before.steps) / span,
            mean_batch=(now.delivered - before.delivered) / batches if batches else None,
            cores_busy=min(1.0, (now.worked_s - before.worked_s) / span / self.cores),
            policy_busy=min(1.0, inferred_s / span / (self._concurrency or 1)),
        )

    def done_here(self) -> WorkDone:
        """What was done in this part of the run."""
        total = self._total
        return WorkDone(*(getattr(total, name) for name in WorkDone._fields))

    def throughput(self) -> Throughput:
        """What was done, over the time from the first batch to the last executed chunk."""
        total = self._total
        wall_s = max(0.0, self._last - (self._began or 0.0))
        return Throughput(
            env_steps=total.steps,
            chunks=total.executed,
            batches=total.batches,
            policy_busy=_share(total.inferred_s, wall_s * (self._concurrency or 1)),
            cores_busy=_share(total.worked_s, wall_s * self.cores),
            wall_s=wall_s,
            lanes=self.lanes,
            cores=self.cores,
            failed_attempts=self.failed_attempts,
            unmade_attempts=self._unmade,
        )

    def _start(self, event: RunStarted) -> None:
        self.phase, self.planned = "starting workers", len(event.trials)
        self.lanes, self.cores = event.lanes, event.cores
        if self._concurrency is None:
            self._concurrency = event.policy.concurrency
        self.carried = len(event.done)
        self.outcomes.update(episode.outcome for episode in event.done)
        self._sealed.update({episode.trial.id: episode for episode in event.done})

    def _hear_sites(self, event: SitesChanged) -> None:
        self.sites = event.sites
        self.lanes = self.lanes_up = sum(site.lanes for site in event.sites)
        self.cores = max(1, sum(site.cores for site in event.sites))
        self._concurrency = max(1, len(event.sites))
        self._total = _Work(event.time, *event.done)
        if event.done.batches:
            if self._began is None:
                self._began, self.phase = event.time, "running"
            self._mark(event.time)

    def _mark(self, at: float) -> None:
        """Remember the sums twice a second; older ones fall out of the window."""
        self._last = at
        self._now = max(self._now, at)
        if not self._recent or at - self._recent[-1].time > 0.5:
            self._recent.append(replace(self._total, time=at))
            while self._recent[0].time < at - WINDOW_S:
                self._recent.popleft()


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None


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


class Progress:
    """Follows a run on a terminal or in a log. A context manager; closing twice is safe."""

    def __init__(self, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        self.tally = Tally()
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._start = self._run_ended = time.perf_counter()
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def on(self, event: Event) -> None:
        self.tally.on(event)
        if isinstance(event, RunEnded):
            self._run_ended = time.perf_counter()
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
    speed = tally.speed()
    if tally.sites and tally.phase != "filming":
        found += site_lines(tally.sites, None if speed is None else speed.steps_per_s)
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
        found.append(
            f"cores {100 * speed.cores_busy:.0f} % busy, "
            f"policy {100 * speed.policy_busy:.0f} % busy"
        )
    return found


def counted(number: int, noun: str) -> str:
    """A count with its noun, such as `1 error` or `2 errors`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clock(seconds: float | None) -> str:
    """A time span as text, such as `1:02:03` or `2:03`; a dash where it is unknown."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
