"""What a run has collected, all of it, in a file of its folder: drawn from again and again.

    <run>/replay/   rows.bin   rows.json

`rows.bin` has a row for each chunk, and after those of a stretch one with the observation that
followed it. It only grows; a checkpoint says how many rows are its own, and a run that goes on
forgets the others. It is mapped, so that pictures need not fit into memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hocket.core.data import Array
from hocket.errors import RunFolderError
from hocket.system.durable import disk_error, drafted
from hocket.train.algorithms.stretches import Stretch
from hocket.train.data.windows import Moves
from hocket.train.networks.contract import PROMPT, Observations

REPLAY = "replay"
_SEEN = "seen "
"""How the names of columns of observations begin."""


class ReplayBuffer:
    """Decisions that were made, and what came of them. One thread calls it."""

    def __init__(self, folder: Path, gamma: float, *, rows: int = 0, device: str = "cpu") -> None:
        """Go on with the first `rows` rows of the folder, and forget what is beyond them."""
        self._folder, self._gamma, self._device = folder, gamma, device
        self._texts: list[str] = []
        self._dtype: np.dtype[np.void] | None = None
        self._decisions = np.zeros(0, np.int64)
        """The rows that are decisions."""
        self.rows = rows
        if rows:
            self._reopen()
        else:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "rows.bin").write_bytes(b"")

    def __len__(self) -> int:
        """Decisions."""
        return len(self._decisions)

    def add(self, stretches: Sequence[Stretch]) -> None:
        """Append what was collected."""
        known = len(self._texts)
        parts = [self._rows_of(stretch) for stretch in stretches]
        try:
            if len(self._texts) > known or not self.rows:
                self._describe()
            with open(self._folder / "rows.bin", "ab") as file:
                for part in parts:
                    file.write(part.tobytes())
        except OSError as exc:
            raise disk_error(exc, self._folder) from exc
        for part in parts:
            found = np.arange(self.rows, self.rows + len(part) - 1)
            self._decisions = np.concatenate((self._decisions, found))
            self.rows += len(part)

    def sync(self) -> None:
        """Make durable what was appended."""
        with open(self._folder / "rows.bin", "rb") as file:
            os.fsync(file.fileno())

    def draw(self, count: int, rng: torch.Generator) -> Moves:
        """Draw decisions with replacement, each as likely as any other."""
        drawn = torch.randint(len(self._decisions), (count,), generator=rng).numpy()
        assert self._dtype is not None  # there are rows
        rows = self._decisions[drawn]
        kept = np.memmap(self._folder / "rows.bin", self._dtype, "r", shape=(self.rows,))
        found, following = kept[rows], kept[rows + 1]
        ages = np.arange(found["actions"].shape[1])
        return Moves(
            observation=self._seen(found),
            actions=self._tensor(found["actions"]),
            mask=self._tensor(ages < found["executed"][:, None]),
            reward=self._tensor(found["reward"]),
            discount=self._tensor(found["discount"]),
            following=self._seen(following),
        )

    def _rows_of(self, stretch: Stretch) -> Array:
        """The rows of a stretch, and one for what followed it."""
        if stretch.prompt not in self._texts:
            self._texts.append(stretch.prompt)
        seen = stretch.observation
        if self._dtype is None:
            columns = [(_SEEN + key, rows.dtype.str, rows.shape[1:]) for key, rows in seen.items()]
            actions = ("actions", "<f4", stretch.actions.shape[1:])
            numbers = [("reward", "<f4"), ("discount", "<f4"), (PROMPT, "<i8"), ("executed", "<i8")]
            self._dtype = np.dtype([*columns, actions, *numbers])
        rows = np.zeros(len(stretch) + 1, self._dtype)
        final = {} if stretch.final is None else stretch.final
        for key, array in seen.items():
            rows[_SEEN + key][:-1] = array
            # Of an episode that ended for good nothing follows: its discount is 0.
            rows[_SEEN + key][-1] = final.get(key, array[-1])
        ages = np.arange(stretch.rewards.shape[1])
        discount = self._gamma ** stretch.executed.astype(np.float64)
        if stretch.terminated:
            discount[-1] = 0.0
        rows["actions"][:-1] = stretch.actions
        rows["reward"][:-1] = (stretch.rewards * self._gamma**ages).sum(1)
        rows["discount"][:-1] = discount
        rows[PROMPT] = self._texts.index(stretch.prompt)
        rows["executed"][:-1] = stretch.executed
        return rows

    def _seen(self, rows: Array) -> Observations:
        names = [name for name in rows.dtype.names or () if name.startswith(_SEEN)]
        tensors = {name.removeprefix(_SEEN): self._tensor(rows[name]) for name in names}
        return Observations({**tensors, PROMPT: self._tensor(rows[PROMPT])}, tuple(self._texts))

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _describe(self) -> None:
        assert self._dtype is not None  # a row is there
        table = {"texts": self._texts, "columns": self._dtype.descr}
        with drafted(self._folder / "rows.json") as draft:
            draft.write_text(json.dumps(table))

    def _reopen(self) -> None:
        file = self._folder / "rows.bin"
        try:
            table: dict[str, Any] = json.loads((self._folder / "rows.json").read_text())
            self._texts = [str(text) for text in table["texts"]]
            columns = [(name, kind, *map(tuple, shape)) for name, kind, *shape in table["columns"]]
            self._dtype = np.dtype(columns)
            size = self.rows * self._dtype.itemsize
            if file.stat().st_size < size:
                raise ValueError(f"it has fewer than {self.rows} rows")
            with open(file, "r+b") as opened:
                opened.truncate(size)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise RunFolderError(f"What {str(file)!r} kept cannot be read: {exc}") from exc
        kept = np.memmap(file, self._dtype, "r", shape=(self.rows,))
        self._decisions = np.flatnonzero(kept["executed"])
