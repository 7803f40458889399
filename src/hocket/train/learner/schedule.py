"""When something is due that happens every so many steps, where steps jump by whole rollouts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Crossing:
    """Fires when a multiple of `every` has been passed since it last fired, however far the count
    jumped; once for a jump. 0 never fires."""

    every: int
    last: int = 0
    """The count at which it fired."""

    def fires(self, count: int) -> bool:
        """Whether it is due at this count."""
        if self.every <= 0 or count // self.every <= self.last // self.every:
            return False
        self.last = count
        return True


def linear(start: float, end: float, fraction: float) -> float:
    """From `start` to `end` as `fraction` goes from 0 to 1, and `end` after that."""
    return start + (end - start) * min(1.0, max(0.0, fraction))
