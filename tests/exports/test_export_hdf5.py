"""HDF5 in robomimic's layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hocket.records.step_rows import KeptStates, load_steps
from hocket.runs.demonstrations.chosen import Choice
from support.exported_runs import episodes_of, export, truth

h5py = pytest.importorskip("h5py")


def test_every_step_is_what_the_env_showed_and_did(image_run: Path, tmp_path: Path) -> None:
    told = export(image_run, "hdf5", tmp_path / "run.hdf5", next_obs=True)
    episodes = episodes_of(image_run)
    assert told.stages == {
        "showing again": [len(episodes)] * 2,
        "writing": [len(episodes)] * 2,
    }
    with h5py.File(tmp_path / "run.hdf5") as file:
        assert len(file["data"]) == len(episodes)
        for number, episode in enumerate(episodes):
            demo, true = file[f"data/demo_{number}"], truth(image_run, episode)
            assert demo.attrs["num_samples"] == episode.steps
            assert demo.attrs["seed"] == episode.trial.seed
            for name in ("image", "wrist_image", "state"):
                np.testing.assert_array_equal(demo["obs"][name], true[f"observation/{name}"][:-1])
                np.testing.assert_array_equal(
                    demo["next_obs"][name], true[f"observation/{name}"][1:]
                )
            steps = load_steps(image_run, [episode.trial])
            np.testing.assert_array_equal(demo["actions"], true["action"])
            np.testing.assert_array_equal(demo["rewards"], steps["reward"].to_numpy()[1:])
            assert demo["dones"][:].tolist() == [0] * (episode.steps - 1) + [1]
            states = KeptStates(image_run).load(episode)
            assert states is not None
            np.testing.assert_array_equal(demo["states"], states[:-1])


def test_attributes_and_masks_are_those_that_robomimic_reads(
    image_run: Path, tmp_path: Path
) -> None:
    export(image_run, "hdf5", tmp_path / "run.hdf5", images=False, valid=0.5)
    episodes = episodes_of(image_run)
    with h5py.File(tmp_path / "run.hdf5") as file:
        assert file["data"].attrs["total"] == sum(episode.steps for episode in episodes)
        assert json.loads(file["data"].attrs["env_args"])["env_name"] == "toy:image"
        masks = {name: {n.decode() for n in rows[:]} for name, rows in file["mask"].items()}
        assert set(file["data/demo_0/obs"]) == {"state"}
    everyone = {f"demo_{number}" for number in range(len(episodes))}
    assert masks["train"] | masks["valid"] == everyone
    assert not masks["train"] & masks["valid"]
    assert len(masks["valid"]) in (3, 4)
    wins = {f"demo_{i}" for i, e in enumerate(episodes) if e.outcome.value == "success"}
    assert masks["success"] == wins


def test_pictures_that_were_kept_are_not_made_again(full_run: Path, tmp_path: Path) -> None:
    told = export(full_run, "hdf5", tmp_path / "run.hdf5")
    assert "showing again" not in told.stages
    with h5py.File(tmp_path / "run.hdf5") as file:
        for number, episode in enumerate(episodes_of(full_run)):
            seen = file[f"data/demo_{number}/obs/image"]
            true = truth(full_run, episode)["observation/image"]
            np.testing.assert_array_equal(seen, true[:-1])


def test_pictures_that_cannot_be_had_are_told(tmp_path: Path) -> None:
    from support.exported_runs import run_toy

    folder = run_toy(tmp_path / "run", "pixels", episodes=2)
    told = export(folder, "hdf5", tmp_path / "run.hdf5")
    assert "No pictures were kept of 2 episodes" in told.notes[0]
    with h5py.File(tmp_path / "run.hdf5") as file:
        assert set(file["data/demo_0/obs"]) == set()


def test_only_the_chosen_episodes_and_cameras_are_in_it(image_run: Path, tmp_path: Path) -> None:
    choice, cameras = Choice(outcomes=("failure",)), ("observation/wrist_image",)
    export(image_run, "hdf5", tmp_path / "run.hdf5", choice=choice, cameras=cameras)
    losses = [e for e in episodes_of(image_run) if e.outcome.value == "failure"]
    with h5py.File(tmp_path / "run.hdf5") as file:
        seeds = [file[f"data/demo_{i}"].attrs["seed"] for i in range(len(file["data"]))]
        assert seeds == [episode.trial.seed for episode in losses]
        assert set(file["data/demo_0/obs"]) == {"state", "wrist_image"}
