"""The protocol that a run was begun by, and how far the run is as it says: what run.yaml, reports
and cards keep of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hocket.system.text import printable

KEY = "protocol"
"""Where provenance has it."""
WORDS = ("name", "suite", "port", "rule", "controller", "by", "unlike")
"""What a protocol says of itself in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProtocol:
    """A protocol by its name: the benchmark, the simulator and whose port to it, what counts as
    success, by whom it is run so, and what published numbers are `unlike` it. What a run does
    otherwise is in phrases: the `part` of its trials that alone is run, and what `differs`."""

    name: str = ""
    suite: str = ""
    port: str = ""
    rule: str = ""
    controller: str = ""
    by: str = ""
    unlike: str = ""
    part: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()

    @classmethod
    def of(cls, provenance: Mapping[str, Any]) -> RunProtocol | None:
        """What provenance says, anyone's; None where a run had no protocol."""
        kept = provenance.get(KEY)
        if not isinstance(kept, Mapping) or not kept.get("name"):
            return None
        lists = {key: tuple(map(str, kept.get(key) or ())) for key in ("part", "differs")}
        words = {key: str(kept.get(key, "")) for key in WORDS}
        return cls(**words, **lists)  # type: ignore[arg-type]

    def to_plain(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "part": list(self.part), "differs": list(self.differs)}

    @property
    def sentence(self) -> str:
        """What the protocol is, and whether the run is as it says."""
        told = f"Protocol {self.name} ({self.suite}; {self.port}; {self.rule})"
        if self.differs:
            told += f", but not as it says: {'; '.join(self.differs)}"
        elif not self.part:
            told += f", as {self.by} run it"
        if self.part:
            told += f"; of its trials {'; '.join(self.part)}"
        return printable(f"{told}. {self.unlike}".strip())


def protocol_told(provenance: Mapping[str, Any]) -> list[str]:
    """The sentence of a run that had a protocol; none of one without."""
    found = RunProtocol.of(provenance)
    return [] if found is None else [found.sentence]
