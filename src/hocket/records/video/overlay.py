"""Burns task, step and outcome into frames, with a few pixels for each letter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hocket.core.data import Array
from hocket.records.video.contact_sheet import letters

_MARGIN = 2
_LETTERS_ACROSS = 26
"""As large as lets this many letters fit side by side."""


def draw_lines(frame: Array, lines: Sequence[str]) -> Array:
    """A copy of an RGB frame with lines of text in its upper left corner, white on dark. What
    does not fit is cut off."""
    drawn = frame.copy()
    scale = max(1, frame.shape[1] // (4 * _LETTERS_ACROSS))
    top = 0
    for line in lines:
        ink = letters(line).repeat(scale, axis=0).repeat(scale, axis=1)
        ink = np.pad(ink, _MARGIN)
        place = drawn[top : top + ink.shape[0], : ink.shape[1]]
        ink = ink[: place.shape[0], : place.shape[1]]
        place //= 4
        place[ink] = 255
        top += ink.shape[0] - _MARGIN
    return drawn


def caption(task: str, step: int, steps: int | None, outcome: str) -> list[str]:
    """What is burnt in: the task, and then the step and the outcome as far as they are known."""
    counted = f"step {step}" if steps is None else f"step {step}/{steps}"
    return [task, f"{counted} {outcome}".rstrip()]
