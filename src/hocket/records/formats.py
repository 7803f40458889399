"""The numbers of the formats on disk. A file of another number is refused: nothing is guessed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hocket.errors import RunFolderError


@dataclass(frozen=True, slots=True)
class FormatNumber:
    """A kind of file or folder that this hocket writes and reads."""

    noun: str
    number: int
    advice: str
    """What to do with one of another number."""

    def check(self, path: Path, found: object) -> None:
        """Refuse what says another number than this one, or none."""
        if found == self.number:
            return
        said = f"format {found}" if isinstance(found, int) else "no format that hocket knows"
        raise RunFolderError(
            f"{str(path)!r} is {self.noun} of {said}; this hocket reads format {self.number} "
            f"alone. {self.advice} Nothing was changed."
        )


RUN = FormatNumber(
    "a run",
    4,
    "Run it again, or use the hocket that made it: `about` in its run.yaml names the version. To "
    "begin a new run with its settings, copy its run.yaml without `about`; settings that "
    "are gone are named then.",
)
REPORT = FormatNumber(
    "a report",
    2,
    "Make it again from its run (hocket report RUN), or use the hocket that it names.",
)
CARD = FormatNumber(
    "a card", 3, "Make it again from its run (hocket card RUN), or use the hocket that it names."
)
CHECKPOINT = FormatNumber(
    "part of a checkpoint", 2, "Train it again, or use the hocket that its run.yaml names."
)
