"""What a training run writes down: TensorBoard files, a table of JSON lines, and a tracker where
one is asked for. The x axis is env steps, always."""

from __future__ import annotations

import importlib
import importlib.util
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from hocket.errors import MissingExtraError

METRICS = "metrics.jsonl"


class Log:
    """One owner of everything that is logged."""

    def __init__(
        self,
        run: Path | None,
        config: Mapping[str, Any],
        *,
        tracker: str = "none",
        resumed_at: int | None = None,
        wall_s: float = 0.0,
    ) -> None:
        """Without a folder nothing is written. `resumed_at` is the env step that an interrupted run
        goes on from: what it had written beyond that did not happen."""
        self._start = time.perf_counter() - wall_s
        self._file: TextIO | None = None
        self._board: Any = None
        self._tracker: Any = None
        self._has_own_axis = False
        if run is not None:
            self._open(run, config, tracker, resumed_at)

    def _open(
        self, run: Path, config: Mapping[str, Any], tracker: str, resumed_at: int | None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        module = _module(tracker) if tracker != "none" else None
        path = run / METRICS
        kept = []
        if resumed_at is not None and path.exists():
            lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line)["env_steps"] <= resumed_at]
        path.write_text("".join(f"{line}\n" for line in kept))
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 - closed by `close`
        self._board = SummaryWriter(str(run / "tensorboard"), purge_step=resumed_at)
        if module is not None:
            self._tracker = module.init(project="hocket", name=run.name, config=dict(config))
        if tracker == "wandb":
            # Its own step never goes back, but an evaluation ends after later updates did.
            self._tracker.define_metric("*", step_metric="env_steps")
            self._has_own_axis = True

    @property
    def wall_s(self) -> float:
        """Seconds since the run began, pauses between its parts left out."""
        return time.perf_counter() - self._start

    def write(self, env_steps: int, values: Mapping[str, float | None], **words: Any) -> None:
        """Numbers at an env step; None is left out of curves."""
        if self._file is None:
            return
        numbers = {key: value for key, value in values.items() if value is not None}
        record = {"env_steps": env_steps, "wall_s": round(self.wall_s, 3), **words, **numbers}
        self._file.write(json.dumps(record) + "\n")
        for key, value in numbers.items():
            self._board.add_scalar(key, value, env_steps)
        if self._tracker is not None:
            step = {} if self._has_own_axis else {"step": env_steps}
            self._tracker.log({**numbers, "env_steps": env_steps}, **step)

    def close(self) -> None:
        """Finish every file."""
        if self._file is not None:
            self._file.close()
            self._board.close()
        if self._tracker is not None:
            self._tracker.finish()


def _module(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        raise MissingExtraError(f"--tracker {name} needs the package. Run: pip install {name}")
    return importlib.import_module(name)
