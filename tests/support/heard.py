"""A reader that remembers what a run told."""

from __future__ import annotations

from typing import Any

from hocket.core.events import Event, Noted


class Heard:
    """Keeps every event, in the order in which they came."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None: ...

    def of(self, *kinds: type[Any]) -> list[Any]:
        """The events of some kinds."""
        return [event for event in self.events if isinstance(event, kinds)]

    @property
    def notes(self) -> list[str]:
        """What users are told in words."""
        return [event.text for event in self.of(Noted)]
