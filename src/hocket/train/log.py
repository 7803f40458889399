"""What a training run counts and tells. `Log` writes a table of JSON lines and tells readers, such
as TensorBoard's; its x axis is env steps, always. `Display` shows the run in a terminal."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hocket.core.contracts.recorder import Reader
from hocket.core.events import Measured
from hocket.results.showing.progress import clock, start_live
from hocket.system.text import printable
from hocket.train.algorithms.stretches import Stretch

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

METRICS = "metrics.jsonl"
_EPISODES = 100
"""Episodes that curves are averaged over."""
_STILL_KL, _STILL_UPDATES = 1e-3, 10
"""An update that moves the policy by less, in nats, and how many of them in a row are a standstill.
Updates that learn move it by 0.005 to 0.1."""
_TOLD = 5
"""Numbers of reward and info that are shown: about a line."""
_PLAIN_EVERY_S = 2.0
"""Seconds between lines where there is no terminal."""


@dataclass(slots=True)
class Counts:
    """Episodes and steps of training on this rank; evaluations are no part of them."""

    env_steps: int = 0
    """Steps on this rank."""
    total_steps: int = 0
    """Steps of all ranks, as of the last update."""
    updates: int = 0
    episodes: int = 0
    """Episodes that ended, lost ones included."""
    dropped: int = 0
    """Episodes that were too old to learn from."""
    filtered: int = 0
    """Groups in which all ended alike."""
    lost: int = 0
    """Attempts that failed."""

    planned: int = 0
    begun: int = 0
    sealed: int = 0
    """Episodes that ended since this process began; `episodes` goes on after a resume."""
    settled: int = 0
    """Episodes that were learnt from, dropped, filtered or lost: nothing more will come of them."""
    filtered_since_update: int = 0
    """Episodes in filtered groups since the last update."""
    errors_in_a_row: int = 0

    @property
    def outstanding(self) -> int:
        """Episodes that were planned and are not settled."""
        return self.planned - self.settled

    @property
    def waiting(self) -> int:
        """Episodes that were planned and not begun."""
        return self.planned - self.begun

    def to_state(self) -> dict[str, Any]:
        """What a checkpoint keeps. What was planned and has not ended is planned again."""
        return {
            "env_steps": self.total_steps,
            "episodes": self.episodes,
            "dropped": self.dropped,
            "filtered": self.filtered,
            "lost": self.lost,
        }

    def restore(self, state: Mapping[str, Any], ranks: int) -> None:
        self.total_steps = state["env_steps"]
        self.env_steps = self.total_steps // ranks
        self.updates = state["version"]
        self.episodes, self.dropped = state["episodes"], state["dropped"]
        self.filtered, self.lost = state["filtered"], state["lost"]

    def to_curves(self) -> dict[str, float]:
        return {
            "count/updates": float(self.updates),
            "count/episodes": float(self.episodes),
            "count/dropped": float(self.dropped),
            "count/filtered_groups": float(self.filtered),
            "count/lost_attempts": float(self.lost),
        }


class Recent:
    """Numbers of the latest episodes, by the names of their curves."""

    def __init__(self) -> None:
        self._episodes: deque[dict[str, float]] = deque(maxlen=_EPISODES)

    def add(self, stretch: Stretch, more: Mapping[str, float]) -> None:
        """Take an episode that ended, and further numbers of it."""
        told = {
            "train/return": stretch.total_reward,
            "train/episode_steps": float(stretch.steps),
            **more,
        }
        if stretch.success is not None:
            told["train/success"] = float(stretch.success)
        self._episodes.append(told)

    def to_curves(self) -> dict[str, float | None]:
        """The mean of each number over the episodes that tell it."""
        names = dict.fromkeys(("train/success", "train/return", "train/episode_steps"))
        names.update(dict.fromkeys(name for told in self._episodes for name in told))
        found = {name: [t[name] for t in self._episodes if name in t] for name in names}
        return {name: sum(n) / len(n) if n else None for name, n in found.items()}


class Shares:
    """Which share of the time since the last report went into collecting, and into what of it, and
    which into learning."""

    def __init__(self) -> None:
        self._since = self._last = time.perf_counter()
        self._was_collecting = False
        self._collecting = 0.0
        self.inferring = 0.0
        """Seconds that the policy worked on batches."""
        self.stepping = 0.0
        """Seconds that lanes executed chunks, summed over lanes."""
        self.learning = 0.0
        """Seconds that updates took."""

    def count(self, *, is_collecting: bool) -> None:
        """Note if episodes are in flight from now on."""
        now = time.perf_counter()
        if self._was_collecting:
            self._collecting += now - self._last
        self._last, self._was_collecting = now, is_collecting

    def take(self, lanes: int) -> dict[str, float]:
        """Return the shares since the last call. Stepping is the mean over `lanes`."""
        now = time.perf_counter()
        whole = max(1e-9, now - self._since)
        found = {
            "time/collecting": min(1.0, self._collecting / whole),
            "time/inferring": min(1.0, self.inferring / whole),
            "time/stepping": min(1.0, self.stepping / whole / lanes),
            "time/learning": min(1.0, self.learning / whole),
        }
        self._since, self._collecting = now, 0.0
        self.inferring = self.stepping = self.learning = 0.0
        return found


class Movement:
    """Notices when updates no longer move the policy, and says so once."""

    def __init__(self) -> None:
        self._still = 0
        """Updates in a row that did not."""

    def add(self, kl: float | None, success: float | None) -> str | None:
        """Take an update's divergence, None where it trained the critic alone, and the share of
        episodes that succeed; return a warning if there is one. Where all succeed there is nothing
        to move for."""
        if kl is None:
            return None
        self._still = self._still + 1 if kl < _STILL_KL and success != 1.0 else 0
        if self._still != _STILL_UPDATES:
            return None
        return (
            f"{_STILL_UPDATES} updates in a row hardly moved the policy: each by a KL below "
            f"{_STILL_KL:g} nats, where 0.005 to 0.1 is usual. Either all episodes end with the "
            f"same reward, or the steps are too small: see train/return, learn/pace and "
            f"learn/policy_grad_norm in {METRICS}, and try a higher --lr or more --epochs."
        )


class Log:
    """The owner of the table that a run logs to, and what its readers are told of it."""

    def __init__(
        self, run: Path | None, state: Mapping[str, Any] | None, readers: Sequence[Reader] = ()
    ) -> None:
        """Without a folder nothing is written. `state` is the checkpoint that an interrupted run
        goes on from: what it had written beyond that did not happen."""
        self._start = time.perf_counter() - (0.0 if state is None else state["wall_s"])
        self._file: TextIO | None = None
        self._readers = readers
        if run is None:
            return
        path = run / METRICS
        kept = []
        if state is not None and path.exists():
            lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
            kept = [line for line in lines if _has_happened(json.loads(line), state)]
        path.write_text("".join(f"{line}\n" for line in kept))
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 - closed by `close`

    @property
    def wall_s(self) -> float:
        """Seconds since the run began, pauses between its parts left out."""
        return time.perf_counter() - self._start

    def write(self, env_steps: int, values: Mapping[str, float | None], **words: Any) -> None:
        """Write numbers and words at an env step; a None is left out."""
        if self._file is None:
            return
        numbers = {key: value for key, value in values.items() if value is not None}
        record = {"env_steps": env_steps, "wall_s": round(self.wall_s, 3), **words, **numbers}
        self._file.write(json.dumps(record) + "\n")
        event = Measured(env_steps=env_steps, values=numbers)
        for reader in self._readers:
            reader.on(event)

    def close(self) -> None:
        """Finish the file; the readers belong to whoever made them."""
        if self._file is not None:
            self._file.close()


class Display:
    """Shows how a run goes: a block that stays at the bottom of a terminal, or a line now and then
    elsewhere. Evaluations are announced in both and stay. Without a stream it shows nothing.
    Closing twice is safe."""

    def __init__(self, stream: TextIO | None, *, total_steps: int, wall_s: float = 0.0) -> None:
        """`wall_s` is how many seconds earlier parts of the run took."""
        self._stream = stream
        self._total = total_steps
        self._start = time.perf_counter() - wall_s
        self._said_at = -_PLAIN_EVERY_S
        # Replaced as a whole: the thread that redraws sees the old state or the new one.
        self._state: tuple[int, tuple[str, ...]] = (0, ("preparing: looking at the env",))
        self._console: Console | None = None
        self._live: Live | None = None
        if stream is not None and stream.isatty():
            self._live = start_live(stream, self._render)
            self._console = self._live.console

    def update(self, env_steps: int, values: Mapping[str, float | None]) -> None:
        """Show the state after an update of the weights; `values` are those of the log."""
        found = tuple(lines(values))
        self._show(env_steps, found, f"{env_steps:,}/{self._total:,} steps, {', '.join(found)}")

    def prepare(self, text: str) -> None:
        """Show what is done before the first update."""
        self._show(0, (text,), text)

    def _show(self, env_steps: int, block: tuple[str, ...], line: str) -> None:
        self._state = (env_steps, block)
        elapsed = time.perf_counter() - self._start
        if self._live is None and elapsed - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = elapsed
            self.announce(line)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def announce(self, text: str) -> None:
        """Print a line that stays."""
        if self._stream is None:
            return
        line = f"[{time.perf_counter() - self._start:7.1f} s] {text}"
        if self._console is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(printable(line) + "\n")
            self._stream.flush()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        steps, (first, *others) = self._state
        elapsed = time.perf_counter() - self._start
        left = elapsed / steps * max(0, self._total - steps) if steps else None
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right", no_wrap=True)
        bar.add_row(
            ProgressBar(total=self._total, completed=min(steps, self._total)),
            f"{steps:,}/{self._total:,} steps, {clock(elapsed)} gone, {clock(left)} left",
        )
        return Group(bar, Text(first, style="bold"), *(Text(line, style="dim") for line in others))


class Reading:
    """Shows how recorded episodes are read: the watcher of what reads them."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._totals: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def stage(self, name: str, total: int) -> None:
        self._totals[name], self._done[name] = total, 0

    def advance(self, name: str) -> None:
        self._done[name] += 1
        # An export says of what it reads that it is written.
        said = "reading" if name == "writing" else name
        self._display.prepare(f"recorded episodes, {said}: {self._done[name]}/{self._totals[name]}")

    def note(self, text: str) -> None:
        self._display.announce(text)


def lines(values: Mapping[str, float | None]) -> list[str]:
    """An update in phrases, the most important first."""
    if "train/return" not in values:
        loss = values.get("learn/cloning_loss") or values.get("learn/judging_loss") or 0.0
        return [f"update {values['count/updates'] or 0:.0f}: loss {loss:.4f}"]
    success = values["train/success"]
    told = "" if success is None else f"success {100 * success:.0f} %, "
    return [
        f"update {values['count/updates'] or 0:.0f}: {told}"
        f"reward {values['train/return'] or 0.0:.2f}",
        f"entropy {values.get('learn/entropy') or 0.0:.2f}, "
        f"kl {values.get('learn/kl') or 0.0:.4f}, "
        f"clipped {100 * (values.get('learn/clip_share') or 0.0):.0f} %",
        f"stale {values['learn/staleness'] or 0.0:.1f}, "
        f"collecting {100 * (values['time/collecting'] or 0.0):.0f} %, "
        f"learning {100 * (values['time/learning'] or 0.0):.0f} %",
        *_told(values),
    ]


def _told(values: Mapping[str, float | None]) -> list[str]:
    """The terms of a reward of several, and what the env says in `info`, as far as a line goes."""
    found = [
        f"{key.partition('/')[2]} {value:.4g}"
        for key, value in values.items()
        if key.startswith(("reward/", "info/")) and value is not None
    ]
    more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    return [", ".join(found[:_TOLD]) + more] if found else []


def _has_happened(record: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """True if a record is of what came before a checkpoint; evaluations after the last one that it
    knows of are made again."""
    key = "evaluated_at" if record["kind"] == "eval" else "env_steps"
    return bool(record["env_steps"] <= state[key])
