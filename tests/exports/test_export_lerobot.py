"""LeRobotDataset v3.0."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from hocket.core.data import Array
from hocket.errors import UsageError
from hocket.exports.lerobot.features import QUANTILES, CameraFiles
from hocket.records.step_rows import load_steps
from hocket.workers.sinks.video import videos_in
from support.exported_runs import TOY, episodes_of, export, run_toy, truth

CAMERAS = ("observation.images.image", "observation.images.wrist_image")
RATE = 20
GREY = np.array([0.299, 0.587, 0.114])


@pytest.fixture(scope="module")
def dataset(image_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lerobot") / "dataset"
    export(image_run, "lerobot", out, crf=1)
    return out


def info_of(dataset: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((dataset / "meta" / "info.json").read_text())
    return info


def frames_of(video: Path) -> Array:
    """In grey: of the toys' noise in colours a video keeps half the detail."""
    with av.open(str(video)) as container:
        times = []
        pictures = []
        for frame in container.decode(video=0):
            times.append(frame.time)
            pictures.append(frame.to_ndarray(format="gray"))
    np.testing.assert_allclose(times, np.arange(len(times)) / RATE, atol=1e-4)
    return np.stack(pictures)


def test_the_description_counts_what_is_there(image_run: Path, dataset: Path) -> None:
    info, episodes = info_of(dataset), episodes_of(image_run)
    assert info["codebase_version"] == "v3.0"
    assert info["fps"] == RATE
    assert info["total_episodes"] == len(episodes)
    assert info["total_frames"] == sum(episode.steps for episode in episodes)
    assert info["total_tasks"] == 1
    assert not any("/" in name for name in info["features"])
    assert info["features"]["action"] == {"dtype": "float32", "shape": [4], "names": None}
    assert info["features"]["next.done"]["dtype"] == "bool"
    for camera in CAMERAS:
        assert info["features"][camera]["shape"] == [24, 24, 3]
    data = dataset / info["data_path"].format(chunk_index=0, file_index=0)
    assert set(pq.read_schema(data).names) | set(CAMERAS) == set(info["features"])


def test_interleaved_episodes_come_out_whole_and_in_planned_order(
    image_run: Path, dataset: Path
) -> None:
    rows = pq.read_table(dataset / "data" / "chunk-000" / "file-000.parquet")
    told = pq.read_table(dataset / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    assert rows["index"].to_pylist() == list(range(rows.num_rows))
    for number, episode in enumerate(episodes_of(image_run)):
        (row,) = told.slice(number, 1).to_pylist()
        assert row["episode_index"] == number
        assert row["length"] == episode.steps
        mine = rows.slice(row["dataset_from_index"], row["length"])
        assert row["dataset_to_index"] == row["dataset_from_index"] + row["length"]
        assert set(mine["episode_index"].to_pylist()) == {number}
        assert mine["frame_index"].to_pylist() == list(range(episode.steps))
        np.testing.assert_allclose(mine["timestamp"], np.arange(episode.steps) / RATE, rtol=1e-6)
        true, steps = truth(image_run, episode), load_steps(image_run, [episode.trial])
        state = np.array(mine["observation.state"].to_pylist(), np.float32)
        np.testing.assert_array_equal(state, true["observation/state"][:-1])
        action = np.array(mine["action"].to_pylist(), np.float32)
        np.testing.assert_array_equal(action, true["action"].astype(np.float32))
        reward = steps["reward"].to_numpy()[1:].astype(np.float32)
        np.testing.assert_array_equal(mine["next.reward"], reward)
        assert mine["next.done"].to_pylist() == [False] * (episode.steps - 1) + [True]
        assert mine["next.success"].to_pylist()[-1] == (episode.outcome.value == "success")
        assert row["tasks"] == ["play image"]


def test_every_picture_is_at_its_time_in_its_camera(image_run: Path, dataset: Path) -> None:
    told = pq.read_table(dataset / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    shown = {
        camera: frames_of(dataset / "videos" / camera / "chunk-000" / "file-000.mp4")
        for camera in CAMERAS
    }
    for number, episode in enumerate(episodes_of(image_run)):
        (row,) = told.slice(number, 1).to_pylist()
        true = truth(image_run, episode)
        all_true = np.stack([true[f"observation/{name}"] for name in ("image", "wrist_image")])
        grey = all_true[:, :-1] @ GREY
        for place, camera in enumerate(CAMERAS):
            begin = round(row[f"videos/{camera}/from_timestamp"] * RATE)
            end = round(row[f"videos/{camera}/to_timestamp"] * RATE)
            assert end - begin == episode.steps
            for i, frame in enumerate(shown[camera][begin:end]):
                apart = np.abs(grey - frame.astype(float)).mean(axis=(2, 3))
                assert apart[place].argmin() == i
                assert apart[place, i] < 4


def test_statistics_are_those_of_the_data(dataset: Path) -> None:
    stats = json.loads((dataset / "meta" / "stats.json").read_text())
    rows = pq.read_table(dataset / "data" / "chunk-000" / "file-000.parquet")
    assert set(stats) == set(info_of(dataset)["features"])
    for name in ("observation.state", "action"):
        values = np.array(rows[name].to_pylist())
        check_stats(stats[name], values)
    check_stats(stats["next.reward"], np.array(rows["next.reward"].to_pylist())[:, None])
    for camera in CAMERAS:
        assert np.shape(stats[camera]["mean"]) == (3, 1, 1)
        assert np.shape(stats[camera]["count"]) == (1,)


def check_stats(told: dict[str, Any], values: Array) -> None:
    assert told["count"] == [len(values)]
    np.testing.assert_allclose(told["min"], values.min(axis=0), rtol=1e-6)
    np.testing.assert_allclose(told["max"], values.max(axis=0), rtol=1e-6)
    np.testing.assert_allclose(told["mean"], values.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(told["std"], values.std(axis=0), atol=1e-6)
    for name, share in QUANTILES.items():
        np.testing.assert_allclose(told[name], np.quantile(values, share, axis=0), atol=1e-6)


def test_picture_statistics_are_of_the_pictures(image_run: Path, dataset: Path) -> None:
    told = pq.read_table(dataset / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    for number, episode in enumerate(episodes_of(image_run)):
        pictures = truth(image_run, episode)["observation/image"][:-1] / 255
        stats = {
            name: np.array(told[f"stats/{CAMERAS[0]}/{name}"][number].as_py())
            for name in ("mean", "std", "min", "max", "q50")
        }
        by_channel = pictures.reshape(-1, 3)
        np.testing.assert_allclose(stats["mean"].ravel(), by_channel.mean(axis=0), atol=1e-9)
        np.testing.assert_allclose(stats["std"].ravel(), by_channel.std(axis=0), atol=1e-9)
        np.testing.assert_allclose(stats["max"].ravel(), by_channel.max(axis=0), atol=1e-9)
        np.testing.assert_allclose(stats["min"].ravel(), by_channel.min(axis=0), atol=1e-9)
        median = np.quantile(by_channel, 0.5, axis=0, method="inverted_cdf")
        np.testing.assert_allclose(stats["q50"].ravel(), median, atol=1e-9)


def test_prompts_are_numbered_and_found_by_their_words(dataset: Path) -> None:
    table = pq.read_table(dataset / "meta" / "tasks.parquet")
    told = json.loads(table.schema.metadata[b"pandas"])
    assert table[told["index_columns"][0]].to_pylist() == ["play image"]
    assert table["task_index"].to_pylist() == [0]


@pytest.mark.slow
def test_tasks_that_do_not_fit_into_one_dataset_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = {"env": ["toy:image", "toy:count"], "episodes": 1, "env_config": {}}
    from hocket.runs.evaluation import evaluate

    evaluate(policy="scripted", out=folder, lanes=2, video="none", **settings)
    with pytest.raises(UsageError, match=r"'observation.images.image' is video in .*--no-images"):
        export(folder, "lerobot", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export(folder, "lerobot", tmp_path / "out", images=False)
    assert info_of(tmp_path / "out")["video_path"] is None
    assert info_of(tmp_path / "out")["total_tasks"] == 2


def test_a_rate_that_was_given_holds(image_run: Path, tmp_path: Path) -> None:
    export(image_run, "lerobot", tmp_path / "out", images=False, fps=12.5)
    assert info_of(tmp_path / "out")["fps"] == 12.5
    rows = pq.read_table(tmp_path / "out" / "data" / "chunk-000" / "file-000.parquet")
    assert rows["timestamp"][1].as_py() == pytest.approx(0.08)


def test_a_picture_with_odd_sides_keeps_them(tmp_path: Path) -> None:
    config = {**TOY, "image_size": 23}
    folder = run_toy(tmp_path / "run", "pixels", record="full", episodes=1, env_config=config)
    export(folder, "lerobot", tmp_path / "out")
    feature = info_of(tmp_path / "out")["features"][CAMERAS[0]]
    assert feature["shape"] == [23, 23, 3]
    video = tmp_path / "out" / "videos" / CAMERAS[0] / "chunk-000" / "file-000.mp4"
    assert frames_of(video).shape[1:] == (23, 23)


def test_video_files_are_bounded_and_no_episode_lies_in_two(full_run: Path, tmp_path: Path) -> None:
    files = CameraFiles(tmp_path, Fraction(RATE), crf=20, limit=1, threads=1)
    clips = []
    for episode in episodes_of(full_run):
        place = full_run / "episodes" / episode.trial.slug / str(episode.attempt)
        (video,) = videos_in(place, lossless=True).values()
        clips.append((files.add(video, episode.steps), episode))
    files.close()
    assert [clip.file for clip, _ in clips] == [0, 1, 2]
    for clip, episode in clips:
        assert (clip.begin_s, clip.end_s) == (0.0, episode.steps / RATE)
        shown = frames_of(tmp_path / "chunk-000" / f"file-{clip.file:03d}.mp4")
        assert len(shown) == episode.steps
