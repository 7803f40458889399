"""A recording for Rerun's viewer: the chosen episodes one after the other on its time line.

Cameras, actions, observations and rewards have the same paths in every episode, so that one layout
shows them all; `episode` says which one it is. Times are those of the simulation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Array
from hocket.exports import new_file, require, scratch_folder
from hocket.runs.demonstrations.chosen import ChosenRun, ExportConfig, Watcher
from hocket.runs.demonstrations.episodes import Demonstration, Demonstrations
from hocket.workers.sinks.encoder import read_pictures
from hocket.workers.sinks.video import camera_name

_JPEG = 92
_GAP_S = 0.5
"""The time between two episodes."""


def write(run: ChosenRun, out: Path, config: ExportConfig, watcher: Watcher) -> None:
    rerun = require("rerun", "rerun-sdk", "Recordings for Rerun need", extra="rerun")
    with new_file(out) as draft, scratch_folder(out) as scratch:
        demonstrations = Demonstrations(run, config, scratch, watcher)
        rate = demonstrations.rate()
        stream = rerun.RecordingStream("hocket", recording_id=run.recorded.name)
        stream.save(str(draft))
        try:
            stream.send_recording_name(run.recorded.title)
            timeline = _Timeline(rerun, stream, rate)
            for demonstration in demonstrations:
                timeline.add(demonstration)
        finally:
            stream.flush()
            stream.disconnect()


class _Timeline:
    """Logs episodes one after the other."""

    def __init__(self, rerun: Any, stream: Any, rate: float) -> None:
        self._rerun = rerun
        self._stream = stream
        self._rate = rate
        self._frame = 0
        self._episode = 0

    def add(self, demo: Demonstration) -> None:
        before = np.arange(demo.length)
        self._tell(demo)
        self._vectors("action", demo.actions, before)
        self._vectors("reward", demo.rewards[:, None], before + 1)
        for key, rows in demo.observations.items():
            matrix = rows.reshape(len(rows), -1)
            self._vectors(f"observation/{camera_name(key)}", matrix, np.arange(len(rows)))
        for name, video in demo.cameras.items():
            for step, picture in enumerate(read_pictures(video, demo.length + 1)):
                self._at(step)
                image = self._rerun.Image(picture).compress(jpeg_quality=_JPEG)
                self._stream.log(f"camera/{name}", image)
        self._frame += demo.length + 1 + round(_GAP_S * self._rate)
        self._episode += 1

    def _tell(self, demo: Demonstration) -> None:
        """Log which episode begins here, and how it ended."""
        episode = demo.episode
        text = (
            f"# {episode.trial.id}\n\n{demo.prompt}\n\n**{episode.verdict}** after "
            f"{episode.steps} steps, return {episode.total_reward:.6g}"
            f"{f' ({demo.label})' if demo.label else ''}"
        )
        self._at(0)
        self._stream.log("episode", self._rerun.TextDocument(text, media_type="text/markdown"))
        self._at(demo.length)
        level = "INFO" if episode.outcome.value == "success" else "WARN"
        words = f"{episode.trial.id}: {episode.outcome.value}"
        self._stream.log("outcomes", self._rerun.TextLog(words, level=level))

    def _at(self, step: int) -> None:
        frame = self._frame + step
        self._stream.set_time("frame", sequence=frame)
        self._stream.set_time("time", duration=frame / self._rate)

    def _vectors(self, path: str, rows: Array, steps: Array) -> None:
        frames = steps + self._frame
        columns = self._rerun.Scalars.columns(scalars=rows.astype(np.float64).reshape(-1))
        self._stream.send_columns(
            path,
            indexes=[
                self._rerun.TimeColumn("frame", sequence=frames),
                self._rerun.TimeColumn("time", duration=frames / self._rate),
            ],
            columns=columns.partition(np.full(len(rows), rows.shape[1])),
        )
