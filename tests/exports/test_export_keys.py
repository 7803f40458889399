"""Every array that an env observes is recorded and exported, whatever its key; what is lost is an
error; the rate is the env's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from hocket.errors import RunFolderError, UsageError
from hocket.runs.evaluation import evaluate
from support.exported_runs import Notes, export
from support.interpreters import SIMULATORS, interpreter
from support.keyed_envs import LENGTH
from support.lerobot_reader_process import read_with_lerobot
from support.parts import needs_venv

STEPS = np.arange(LENGTH, dtype=np.float32)[:, None]


def run(folder: Path, name: str, **settings: Any) -> Path:
    """A run of two episodes in which a policy looks at every third step."""
    env = name if ":" in name else f"support.keyed_envs:{name}"
    options: dict[str, Any] = {"episodes": 2, "lanes": 2, "video": "none", "replan": 3, **settings}
    evaluate(env=env, policy="random", out=folder, **options)
    return folder


def info_of(dataset: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "meta" / "info.json").read_text())
    return found


def frames_of(dataset: Path, key: str) -> Any:
    table = pq.read_table(dataset / "data" / "chunk-000" / "file-000.parquet")
    return np.array(table[key].to_pylist())[:LENGTH]


def test_arrays_without_a_state_become_one_with_names(tmp_path: Path) -> None:
    export(run(tmp_path / "run", "Fetcher"), "lerobot", tmp_path / "dataset")
    info = info_of(tmp_path / "dataset")
    state = info["features"]["observation.state"]
    assert state["shape"] == [10]
    assert state["names"] == [
        *[f"achieved_goal_{i}" for i in range(3)],
        *[f"desired_goal_{i}" for i in range(3)],
        *[f"observation_{i}" for i in range(4)],
    ]
    parts = [STEPS + 0.5] * 3 + [STEPS * 0 + 1] * 3 + [STEPS] * 4
    expected = np.concatenate(parts, axis=1)
    np.testing.assert_array_equal(frames_of(tmp_path / "dataset", "observation.state"), expected)
    assert info["fps"] == 12


def test_arrays_beside_a_state_keep_their_keys_and_kinds(tmp_path: Path) -> None:
    export(run(tmp_path / "run", "Strange"), "lerobot", tmp_path / "dataset")
    features = info_of(tmp_path / "dataset")["features"]
    kinds = {key: (feature["dtype"], feature["shape"]) for key, feature in features.items()}
    assert kinds["observation.state"] == ("float32", [2])
    assert kinds["observation.robot.matrix"] == ("float32", [4])
    assert kinds["observation.count"] == ("int64", [1])
    assert kinds["observation.is_open"] == ("bool", [1])
    counts = frames_of(tmp_path / "dataset", "observation.count")
    assert counts.tolist() == list(range(LENGTH))


def test_hdf5_has_every_array_as_it_was_observed(tmp_path: Path) -> None:
    export(run(tmp_path / "run", "Strange"), "hdf5", tmp_path / "file.hdf5", next_obs=True)
    with h5py.File(tmp_path / "file.hdf5") as file:
        seen, after = file["data/demo_0/obs"], file["data/demo_0/next_obs"]
        assert set(seen) == {"state", "robot.matrix", "count", "is_open"}
        assert seen["robot.matrix"].shape == (LENGTH, 2, 2)
        assert seen["robot.matrix"].dtype == np.float64
        np.testing.assert_array_equal(after["count"], np.arange(1, LENGTH + 1))
        np.testing.assert_array_equal(seen["is_open"][:, 0], np.arange(LENGTH) % 2 == 0)


def test_pictures_and_numbers_of_an_env_that_cannot_be_shown_again(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "Pusher", record="full")
    export(folder, "hdf5", tmp_path / "file.hdf5")
    with h5py.File(tmp_path / "file.hdf5") as file:
        seen = file["data/demo_1/obs"]
        np.testing.assert_array_equal(seen["agent_pos"][:, 0], np.arange(LENGTH))
        np.testing.assert_array_equal(seen["pixels"][:, 0, 0, 0], 20 * np.arange(LENGTH))


def test_env_that_restores_but_cannot_be_observed_again_is_exported_as_recorded(
    tmp_path: Path,
) -> None:
    watcher = export(run(tmp_path / "run", "Restorable"), "hdf5", tmp_path / "file.hdf5")
    assert "No pictures were kept" in watcher.notes[0]
    with h5py.File(tmp_path / "file.hdf5") as file:
        seen = file["data/demo_0"]
        np.testing.assert_array_equal(seen["obs/agent_pos"][:, 0], np.arange(LENGTH))
        np.testing.assert_array_equal(seen["states"][:, 0], np.arange(LENGTH))


def test_rows_of_a_batched_simulator_are_recorded_by_every_key(tmp_path: Path) -> None:
    name = "vector:support.keyed_envs:make_rows"
    limits = {"max_steps": LENGTH}
    folder = run(tmp_path / "run", name, record="full", env_config=limits)
    export(folder, "lerobot", tmp_path / "dataset")
    assert info_of(tmp_path / "dataset")["features"]["observation.state"]["shape"] == [10]
    assert info_of(tmp_path / "dataset")["fps"] == 12
    sparse = run(tmp_path / "sparse", name, env_config=limits)
    with pytest.raises(RunFolderError, match="not at every step"):
        export(sparse, "lerobot", tmp_path / "lost")


def test_another_interpreter_records_by_every_key_and_says_its_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = interpreter(tmp_path / "venv", *SIMULATORS)
    monkeypatch.chdir(Path(__file__).parents[1])
    folder = run(tmp_path / "run", "Fetcher", env_python=python)
    export(folder, "lerobot", tmp_path / "dataset")
    info = info_of(tmp_path / "dataset")
    assert info["features"]["observation.state"]["shape"] == [10]
    assert info["fps"] == 12


@pytest.mark.slow
def test_array_that_was_too_large_to_keep_is_refused_or_left_out_by_name(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "Deep")
    with pytest.raises(RunFolderError, match="'observation/depth' was too large to be recorded"):
        export(folder, "hdf5", tmp_path / "file.hdf5")
    export(folder, "hdf5", tmp_path / "file.hdf5", images=False)
    full = run(tmp_path / "full", "Deep", record="full")
    export(full, "hdf5", tmp_path / "full.hdf5")
    with h5py.File(tmp_path / "full.hdf5") as file:
        depth = file["data/demo_0/obs/depth"]
        np.testing.assert_array_equal(depth[:, 0, 0, 0], 3 + np.arange(LENGTH))


def test_keys_that_would_have_one_name_are_refused(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "Clashing")
    for form in ("lerobot", "hdf5"):
        with pytest.raises(UsageError, match="under one name"):
            export(folder, form, tmp_path / form)


@pytest.mark.slow
def test_rate_is_the_env_s_own_and_never_made_up(tmp_path: Path) -> None:
    export(run(tmp_path / "slow", "Slow"), "lerobot", tmp_path / "dataset")
    assert info_of(tmp_path / "dataset")["fps"] == 4
    untimed = run(tmp_path / "untimed", "Untimed")
    with pytest.raises(UsageError, match="--fps"):
        export(untimed, "lerobot", tmp_path / "refused")
    export(untimed, "lerobot", tmp_path / "told", fps=5.0)
    assert info_of(tmp_path / "told")["fps"] == 5


def test_gymnasium_env_says_its_rate_and_prompt_without_being_asked_again(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "gym:CartPole-v1", env_config={"prompt": "balance it"})
    watcher: Notes = export(folder, "lerobot", tmp_path / "dataset")
    assert info_of(tmp_path / "dataset")["fps"] == 50
    assert watcher.notes == []
    table = pq.read_table(tmp_path / "dataset" / "meta" / "tasks.parquet")
    assert table["__index_level_0__"].to_pylist() == ["balance it"]


@pytest.mark.slow
@needs_venv("lerobot")
@pytest.mark.timeout(400)
def test_lerobot_opens_what_has_no_state(tmp_path: Path) -> None:
    for name, width in (("Fetcher", 10), ("Pusher", 2)):
        folder = run(tmp_path / name, name, record="full")
        export(folder, "lerobot", tmp_path / f"{name}-dataset")
        told, read = read_with_lerobot(tmp_path / f"{name}-dataset", tmp_path)
        assert told["fps"] == 12
        assert read["observation.state"].shape == (2 * LENGTH, width)
