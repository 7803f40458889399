"""What a training run tells. `Log` writes TensorBoard files, a table of JSON lines, and to a
tracker where one is asked for; its x axis is env steps, always. `Display` shows the run in a
terminal."""

from __future__ import annotations

import importlib
import importlib.util
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hocket.errors import MissingExtraError
from hocket.results.progress import clock, start_live

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

METRICS = "metrics.jsonl"
_PLAIN_EVERY_S = 2.0
"""Seconds between lines where there is no terminal. Chosen by hand."""


class Log:
    """The one owner of all files and trackers that a run logs to."""

    def __init__(
        self,
        run: Path | None,
        config: Mapping[str, Any],
        *,
        tracker: str = "none",
        resumed_at: int | None = None,
        wall_s: float = 0.0,
    ) -> None:
        """Without a folder nothing is written. `resumed_at` is the env step that an interrupted run
        goes on from: what it had written beyond that did not happen."""
        self._start = time.perf_counter() - wall_s
        self._file: TextIO | None = None
        self._board: Any = None
        self._tracker: Any = None
        self._has_own_axis = False
        if run is not None:
            self._open(run, config, tracker, resumed_at)

    def _open(
        self, run: Path, config: Mapping[str, Any], tracker: str, resumed_at: int | None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        module = _module(tracker) if tracker != "none" else None
        path = run / METRICS
        kept = []
        if resumed_at is not None and path.exists():
            lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line)["env_steps"] <= resumed_at]
        path.write_text("".join(f"{line}\n" for line in kept))
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 - closed by `close`
        self._board = SummaryWriter(str(run / "tensorboard"), purge_step=resumed_at)
        if module is not None:
            self._tracker = module.init(project="hocket", name=run.name, config=dict(config))
        if tracker == "wandb":
            # Its own step never goes back, but an evaluation ends after later updates did.
            self._tracker.define_metric("*", step_metric="env_steps")
            self._has_own_axis = True

    @property
    def wall_s(self) -> float:
        """Seconds since the run began, pauses between its parts left out."""
        return time.perf_counter() - self._start

    def write(self, env_steps: int, values: Mapping[str, float | None], **words: Any) -> None:
        """Writes numbers and words at an env step; a None is left out."""
        if self._file is None:
            return
        numbers = {key: value for key, value in values.items() if value is not None}
        record = {"env_steps": env_steps, "wall_s": round(self.wall_s, 3), **words, **numbers}
        self._file.write(json.dumps(record) + "\n")
        for key, value in numbers.items():
            self._board.add_scalar(key, value, env_steps)
        if self._tracker is not None:
            step = {} if self._has_own_axis else {"step": env_steps}
            self._tracker.log({**numbers, "env_steps": env_steps}, **step)

    def close(self) -> None:
        """Finishes every file."""
        if self._file is not None:
            self._file.close()
            self._board.close()
        if self._tracker is not None:
            self._tracker.finish()


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
        """Shows the state after an update of the weights; `values` are those of the log."""
        found = tuple(lines(values))
        self._state = (env_steps, found)
        elapsed = time.perf_counter() - self._start
        if self._live is None and elapsed - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = elapsed
            self._say(f"{env_steps:,}/{self._total:,} steps, {', '.join(found)}")

    def announce(self, text: str) -> None:
        """Prints a line that stays."""
        self._say(text)

    def close(self) -> None:
        """Takes the block away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, text: str) -> None:
        if self._stream is None:
            return
        line = f"[{time.perf_counter() - self._start:7.1f} s] {text}"
        if self._console is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(line + "\n")
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


def lines(values: Mapping[str, float | None]) -> list[str]:
    """Tells an update in a few phrases, the most important first."""
    success = values["train/success"]
    told = "" if success is None else f"success {100 * success:.0f} %, "
    return [
        f"update {values['count/updates'] or 0:.0f}: {told}"
        f"reward {values['train/return'] or 0.0:.2f}",
        f"entropy {values['learn/entropy'] or 0.0:.2f}, kl {values['learn/kl'] or 0.0:.4f}, "
        f"clipped {100 * (values['learn/clip_share'] or 0.0):.0f} %",
        f"stale {values['learn/staleness'] or 0.0:.1f}, "
        f"collecting {100 * (values['time/collecting'] or 0.0):.0f} %, "
        f"learning {100 * (values['time/learning'] or 0.0):.0f} %",
    ]


def _module(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        raise MissingExtraError(f"--tracker {name} needs the package. Run: pip install {name}")
    return importlib.import_module(name)
