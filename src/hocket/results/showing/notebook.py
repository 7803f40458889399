"""Progress where Python itself is asked to evaluate: in a notebook, in a script on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from hocket.core.events import Event
from hocket.results.showing.progress import REDRAWS_PER_S, ProgressDisplay
from hocket.system.text import printable

if TYPE_CHECKING:
    from IPython.display import DisplayHandle


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
