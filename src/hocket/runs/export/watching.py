"""How an export tells what it is doing."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Told what is going on; never asked."""

    def stage(self, name: str, total: int) -> None:
        """A part of the work begins, of so many pieces."""
        ...

    def advance(self, name: str) -> None:
        """One more piece of that part is done."""
        ...

    def note(self, text: str) -> None:
        """What the user should know of the result."""
        ...


class Silent:
    """Tells nobody."""

    def stage(self, name: str, total: int) -> None: ...

    def advance(self, name: str) -> None: ...

    def note(self, text: str) -> None: ...
