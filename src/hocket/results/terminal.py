"""The console that everything is printed on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from hocket.system.text import printable


class Console(rich.console.Console):
    """Rich's console, on which names and messages of others command nothing: escape sequences in
    them are written out, and `:name:` is no picture. Those of Rich itself are no text, and stay."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Text as it is measured and laid out, so that what is written out has its room."""
        return super().render_str(printable(text), **{**options, "emoji": False})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else segment._replace(text=text)
