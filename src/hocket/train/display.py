"""How a training run looks while it goes on: a block that stays at the bottom of a terminal, or a
line now and then elsewhere. Evaluations are announced in both and stay."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from hocket.results.progress import clock, start_live

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_PLAIN_EVERY_S = 2.0


class Display:
    """Shows the newest state; without a stream it shows nothing. Closing twice is safe."""

    def __init__(self, stream: TextIO | None, *, total_steps: int, wall_s: float = 0.0) -> None:
        """`wall_s` is how long earlier parts of the run took."""
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
        """After an update of the weights; `values` are those of the log."""
        found = tuple(lines(values))
        self._state = (env_steps, found)
        elapsed = time.perf_counter() - self._start
        if self._live is None and elapsed - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = elapsed
            self._say(f"{env_steps:,}/{self._total:,} steps, {', '.join(found)}")

    def announce(self, text: str) -> None:
        """A line that stays."""
        self._say(text)

    def close(self) -> None:
        """Take the block away."""
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
    """An update in a few phrases, the most important first."""
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
