"""What stands where a run's ledger stands when its episodes are used up at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket.core.data import Trial
from hocket.core.events import EpisodesSealed, Event
from hocket.records.chunks import ChunkRows
from hocket.records.folder import RunFolder
from hocket.records.ledger.writer import ReceivesFiles


class Unkept:
    """Keeps nothing, and counts an episode as durable once it was told."""

    def __init__(self, folder: Path) -> None:
        self.folder = RunFolder.at(folder)
        self.leg = 0
        self.committed = 0
        self._chunks: ChunkRows | None = None

    def attach(self, recorder: ChunkRows) -> None:
        self._chunks = recorder

    @property
    def receivers(self) -> Mapping[str, ReceivesFiles]:
        return {}

    def on(self, event: Event) -> None:
        if isinstance(event, EpisodesSealed):
            self.committed += len(event.episodes)
            for episode in event.episodes if self._chunks is not None else ():
                self._chunks.take(episode)  # type: ignore[union-attr]

    def next_attempts(self) -> Mapping[str, int]:
        return {}

    def unsettled(self) -> Sequence[tuple[Trial, int]]:
        return ()

    def meta(self) -> Mapping[str, Any]:
        return {}

    def behind(self) -> bool:
        return False

    def unmade(self) -> int:
        return 0

    def keep(self, key: str, value: Any) -> None: ...

    def choose(self, trial: Trial, attempt: int) -> None: ...

    def forget(self, trial: Trial, attempt: int) -> None: ...

    def flush(self) -> None: ...

    def sync_files(self) -> None: ...

    def close(self) -> None: ...
