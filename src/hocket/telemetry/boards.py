"""The trackers of experiments that a run can be logged to, each behind the same few calls."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np

from hocket.core.contracts.recorder import Followed
from hocket.core.data import Array

PROJECT = "hocket"
"""The project, or experiment, unless another is named."""
_STRIP = 6
"""Pictures that stand for a film where none can be shown."""
_LONGEST_SETTING = 500


class Board(Protocol):
    """One run in a tracker. Closing once ends it."""

    def curve(self, values: Mapping[str, float], axis: str, at: int) -> None:
        """Log values at a place of an axis that only grows."""

    def result(self, values: Mapping[str, float]) -> None:
        """Log what came of the run."""

    def film(self, name: str, film: Path) -> None:
        """Log a film."""

    def card(self, files: Sequence[Path]) -> None:
        """Keep the files of the run's card."""

    def close(self) -> None: ...


class Wandb:
    """Weights & Biases; WANDB_MODE=offline keeps everything here."""

    def __init__(self, project: str, run: Followed) -> None:
        import wandb

        self._wandb: ModuleType = wandb
        self._run = wandb.init(
            project=project or PROJECT, name=run.folder.name, config=dict(run.config)
        )
        self._axes: set[str] = set()

    def curve(self, values: Mapping[str, float], axis: str, at: int) -> None:
        if axis not in self._axes:
            self._axes.add(axis)
            self._run.define_metric("*", step_metric=axis)
        self._run.log({**values, axis: at})

    def result(self, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))

    def film(self, name: str, film: Path) -> None:
        self._run.log({name: self._wandb.Video(str(film), format="mp4")})

    def card(self, files: Sequence[Path]) -> None:
        kept = self._wandb.Artifact(f"card-{self._run.id}", type="card")
        for file in files:
            kept.add_file(str(file))
        self._run.log_artifact(kept)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """Trackio, whose files are here unless its own settings name a Space."""

    def __init__(self, project: str, run: Followed) -> None:
        import trackio

        self._trackio: ModuleType = trackio
        self._name = run.folder.name
        self._run = trackio.init(
            project=project or PROJECT,
            name=self._name,
            config=dict(run.config),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._at = 0

    def curve(self, values: Mapping[str, float], axis: str, at: int) -> None:
        self._at = max(self._at, at)
        self._run.log({**values, axis: at}, step=at)

    def result(self, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=self._at)

    def film(self, name: str, film: Path) -> None:
        self._run.log({name: self._trackio.Video(str(film))}, step=self._at)

    def card(self, files: Sequence[Path]) -> None:
        kept = self._trackio.Artifact(f"card-{self._name}", type="card")
        for file in files:
            kept.add_file(str(file))
        self._run.log_artifact(kept)

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """MLflow, at MLFLOW_TRACKING_URI."""

    def __init__(self, experiment: str, run: Followed) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient()
        name = experiment or PROJECT
        known = self._client.get_experiment_by_name(name)
        number = known.experiment_id if known else self._client.create_experiment(name)
        self._run: str = self._client.create_run(number, run_name=run.folder.name).info.run_id
        told = {key: str(value)[:_LONGEST_SETTING] for key, value in run.config.items()}
        self._client.log_batch(self._run, params=[Param(k, v) for k, v in told.items()])

    def curve(self, values: Mapping[str, float], axis: str, at: int) -> None:
        now = int(1000 * time.time())
        numbers = [self._metric(_plain(key), value, now, at) for key, value in values.items()]
        self._client.log_batch(self._run, metrics=numbers)

    def result(self, values: Mapping[str, float]) -> None:
        self.curve(values, "", 0)

    def film(self, name: str, film: Path) -> None:
        self._client.log_artifact(self._run, str(film), _plain(name))

    def card(self, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._run, str(file), "card")

    def close(self) -> None:
        self._client.set_terminated(self._run)


class TensorBoard:
    """TensorBoard's files, in the run folder or in one that is named. A film is a strip of its
    pictures there."""

    def __init__(self, folder: str, run: Followed) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = folder or str(run.folder / "tensorboard")
        self._board = SummaryWriter(place, purge_step=run.resumed_at)
        self._at = 0

    def curve(self, values: Mapping[str, float], axis: str, at: int) -> None:
        self._at = max(self._at, at)
        for key, value in values.items():
            self._board.add_scalar(key, value, at)

    def result(self, values: Mapping[str, float]) -> None:
        self.curve(values, "", self._at)

    def film(self, name: str, film: Path) -> None:
        strip = _strip(film)
        if strip is not None:
            self._board.add_image(name, strip, self._at, dataformats="HWC")

    def card(self, files: Sequence[Path]) -> None:
        for file in files:
            if file.suffix == ".md":
                self._board.add_text("card", file.read_text(encoding="utf-8"), self._at)

    def close(self) -> None:
        self._board.close()


def _plain(name: str) -> str:
    """A name of letters that MLflow takes."""
    return "".join(each if each.isalnum() or each in "_-./ " else "_" for each in name)


def _strip(film: Path) -> Array | None:
    """Some pictures of a film side by side, uint8 `[H, W, 3]`; None where it has none."""
    import av

    with av.open(str(film)) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    if not frames:
        return None
    chosen = np.linspace(0, len(frames) - 1, min(_STRIP, len(frames))).round().astype(int)
    return np.concatenate([frames[at] for at in chosen], axis=1)
