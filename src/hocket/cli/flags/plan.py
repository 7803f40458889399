"""What a command line asks for, as one value: the verb makes it and nothing else, and `--dry-run`
prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Generic

from hocket import rooms
from hocket.runs.sites import MachinesConfig
from hocket.runs.subject import SubjectT


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(Generic[SubjectT]):
    """Runs, who reads them, and what is put out."""

    runs: Mapping[str, SubjectT]
    """By name; a run that is alone may have none, and then lies in `out` itself."""
    base: str | None = None
    """The run that the others are compared with."""
    out: Path | None = None
    """The folder; None is one named after time, env and policy."""
    is_resumed: bool = False
    """True where the run goes on in its folder."""
    readers: tuple[str, ...] = ()
    machines: MachinesConfig | None = None
    is_watched: bool = False
    is_json: bool = False
    is_dry: bool = False
    notes: tuple[str, ...] = ()
    """What the user should know before it begins."""

    def __post_init__(self) -> None:
        if self.machines is not None:
            rooms.require("machines")
        if self.is_watched:
            rooms.require("watch")

    @property
    def is_one(self) -> bool:
        """True where it is one run, alone."""
        return list(self.runs) == [""]

    def describe(self) -> list[str]:
        """The plan in lines; of a run's settings those that differ from their defaults."""
        lines = [f"{name or 'run'}: {_settings(config)}" for name, config in self.runs.items()]
        if self.base is not None:
            lines.append(f"compared with: {self.base}")
        if self.machines is not None:
            lines.append(f"machines: {_settings(self.machines)}")
        if self.readers:
            lines.append(f"readers: {', '.join(self.readers)}")
        if self.is_watched:
            lines.append("a page in the browser")
        lines.append(f"output: {'JSON' if self.is_json else 'a table'}")
        return [*lines, *(f"note: {note}" for note in self.notes)]


def _settings(config: Any) -> str:
    found = []
    for field in fields(config):
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
        value = getattr(config, field.name)
        if value != default:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            found.append(f"{field.name}={shown}")
    return " ".join(found)
