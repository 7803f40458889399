"""LeRobot itself opens what is exported for it, and reads what was recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.exported_runs import episodes_of, export, truth
from support.lerobot_reader_process import read_with_lerobot
from support.parts import needs_venv


@pytest.mark.slow
@needs_venv("lerobot")
@pytest.mark.timeout(400)
def test_lerobot_reads_every_frame_as_it_was_recorded(image_run: Path, tmp_path: Path) -> None:
    export(image_run, "lerobot", tmp_path / "dataset")
    told, read = read_with_lerobot(tmp_path / "dataset", tmp_path)
    episodes = episodes_of(image_run)
    assert told["episodes"] == len(episodes)
    assert told["frames"] == sum(episode.steps for episode in episodes)
    assert told["fps"] == 20
    true = [truth(image_run, episode) for episode in episodes]
    assert set(read["tasks"].tolist()) == {"play image"}
    states = np.concatenate([one["observation/state"][:-1] for one in true])
    np.testing.assert_array_equal(read["observation.state"], states)
    actions = np.concatenate([one["action"] for one in true]).astype(np.float32)
    np.testing.assert_array_equal(read["action"], actions)
    np.testing.assert_allclose(read["mean_of_action"], actions.mean(axis=0), atol=1e-6)
    numbers = np.repeat(np.arange(len(episodes)), [episode.steps for episode in episodes])
    np.testing.assert_array_equal(read["episode_index"], numbers)
    weights = np.array([0.299, 0.587, 0.114])
    shown = np.tensordot(read["observation.images.wrist_image"], weights, axes=(1, 0))
    pictures = np.concatenate([one["observation/wrist_image"][:-1] for one in true])
    brightness = pictures @ weights / 255
    apart = np.abs(shown[:, None] - brightness[None]).mean(axis=(2, 3))
    np.testing.assert_array_equal(apart.argmin(axis=1), np.arange(len(apart)))
