from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from hocket.core.contracts.recorder import AttemptStart, StepRecord, Track
from hocket.core.data import Array, Outcome, Trial
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, ObservationError
from hocket.workers.sinks.pictures import as_frame, cameras_in
from hocket.workers.sinks.video import VideoConfig, VideoSink, file_name, stride_of, videos_in

IMAGE = "observation/image"
IN_LINE = ("cameras",)
LATER = ("cameras", "deferred", "snapshot")


def start(folder: Path, record: dict[str, Any], *, rate: float | None = 10.0) -> AttemptStart:
    return AttemptStart(
        trial=Trial(suite="toy", task="image", seed=0),
        attempt=0,
        task=TaskInfo(name="push-v3", control_rate=rate),
        prompt="",
        folder=str(folder),
        record=record,
        abilities=IN_LINE,
    )


def open_track(folder: Path, wish: str = "all", **config: Any) -> Track:
    return VideoSink("", VideoConfig(**config)).open(start(folder, {"video": wish}))


def step(number: int, observation: dict[str, Array] | None) -> StepRecord:
    return StepRecord(
        step=number,
        action=None,
        reward=0.0,
        terminated=False,
        truncated=False,
        success=None,
        chunk=0,
        age=0,
        observation=observation,
        state=None,
    )


def picture(value: int, size: int = 64) -> dict[str, Array]:
    return {IMAGE: np.full((size, size, 3), value, np.uint8), "observation/state": np.zeros(3)}


def frames(path: Path) -> list[Array]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_each_camera_has_a_file_with_a_frame_for_the_reset_and_each_step(tmp_path: Path) -> None:
    track = open_track(tmp_path / "e")
    shared = np.zeros((32, 40, 3), np.uint8)
    for i in range(50):
        shared[:] = 5 * i  # the env draws over its last picture
        track.step(step(i, {IMAGE: shared, "observation/wrist/left": shared // 2}))
    files = list(track.seal(Outcome.SUCCESS))
    assert files == [str(tmp_path / "e" / name) for name in ("image.mp4", "wrist.left.mp4")]
    assert sorted(path.name for path in (tmp_path / "e").iterdir()) == [
        "image.mp4",
        "wrist.left.mp4",
    ]
    for path, scale in zip(files, (5, 2.5), strict=True):
        got = frames(Path(path))
        assert len(got) == 50
        for i, frame in enumerate(got):
            assert np.abs(frame.astype(int) - int(scale * i)).max() <= 4
    assert videos_in(tmp_path / "e") == {
        "image": tmp_path / "e" / "image.mp4",
        "wrist.left": tmp_path / "e" / "wrist.left.mp4",
    }


def test_only_the_cameras_named_are_filmed_and_must_be_there(tmp_path: Path) -> None:
    track = open_track(tmp_path, cameras=(IMAGE,))
    track.step(step(0, {**picture(9), "observation/other": picture(1)[IMAGE]}))
    assert len(track.seal(Outcome.SUCCESS)) == 1
    missing = open_track(tmp_path, cameras=("observation/side",))
    with pytest.raises(ObservationError, match="no camera 'observation/side'"):
        missing.step(step(0, picture(9)))
    missing.discard()


def test_floats_between_0_and_1_are_scaled(tmp_path: Path) -> None:
    track = open_track(tmp_path, lossless=False)
    for i in range(3):
        track.step(step(i, {"observation/image": np.full((16, 16, 3), 0.5, np.float32)}))
    track.seal(Outcome.SUCCESS)
    assert np.abs(frames(tmp_path / "image.mp4")[2].astype(int) - 128).max() <= 3


def test_gray_and_alpha_become_rgb() -> None:
    gray = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    assert np.array_equal(as_frame("k", gray, 0), np.repeat(gray, 3, axis=2))
    rgba = np.random.default_rng(0).integers(0, 256, (8, 8, 4), dtype=np.uint8)
    assert np.array_equal(as_frame("k", rgba, 0), rgba[:, :, :3])


@pytest.mark.parametrize("bad", [2.0, -0.5, np.nan])
def test_floats_outside_of_0_to_1_are_refused_with_the_step(bad: float) -> None:
    image = np.full((8, 8, 3), 0.5)
    image[3, 3, 1] = bad
    with pytest.raises(ObservationError, match=r"'k' at step 7 .* \[0, 1\]"):
        as_frame("k", image, 7)


def test_pictures_are_found_and_depths_and_vectors_are_not() -> None:
    observation = {
        "b": np.zeros((8, 8, 3), np.uint8),
        "a": np.zeros((8, 8, 3), np.float32),
        "depth": np.zeros((8, 8, 1), np.float32),
        "metres": np.full((8, 8, 3), 4.0),
        "state": np.zeros(3),
        "matrix": np.zeros((3, 3, 3)),
        "counts": np.zeros((8, 8, 3), np.int64),
    }
    assert cameras_in(observation) == ["a", "b"]


def test_a_camera_that_changes_its_size_ends_the_attempt_and_leaves_nothing(tmp_path: Path) -> None:
    track = open_track(tmp_path / "e")
    track.step(step(0, picture(0, 64)))
    with pytest.raises(ObservationError, match=r"\(64, 64, 3\) to \(32, 32, 3\) at step 1"):
        track.step(step(1, picture(0, 32)))
    track.discard()
    assert list((tmp_path / "e").glob("*")) == []


def test_an_episode_without_steps_has_the_frame_of_its_reset(tmp_path: Path) -> None:
    track = open_track(tmp_path)
    track.step(step(0, picture(77)))
    track.seal(Outcome.SUCCESS)
    (only,) = frames(tmp_path / "image.mp4")
    assert np.abs(only.astype(int) - 77).max() <= 3


def test_an_attempt_that_was_never_reset_has_no_file(tmp_path: Path) -> None:
    assert list(open_track(tmp_path / "e").seal(Outcome.FAILURE)) == []
    assert not (tmp_path / "e").exists()


def test_an_env_without_cameras_has_no_file(tmp_path: Path) -> None:
    track = open_track(tmp_path / "e")
    for i in range(3):
        track.step(step(i, {"observation/state": np.zeros(4)}))
    assert list(track.seal(Outcome.SUCCESS)) == []


@pytest.mark.parametrize("outcome", list(Outcome))
def test_where_failures_are_wanted_they_and_errors_are_kept(
    tmp_path: Path, outcome: Outcome
) -> None:
    is_kept = outcome in (Outcome.FAILURE, Outcome.ERROR)
    track = open_track(tmp_path, "failures")
    for i in range(5):
        track.step(step(i, picture(i)))
    assert bool(track.seal(outcome)) is is_kept
    assert len(list(tmp_path.iterdir())) == is_kept


def test_what_can_be_filmed_later_is_not_filmed_in_line() -> None:
    sink = VideoSink()
    task = TaskInfo(name="")
    assert sink.needs_of(task, {"video": "all"}, IN_LINE).all_cameras
    assert not sink.needs_of(task, {"video": "all"}, LATER).all_cameras
    assert sink.needs_of(task, {"video": "all", "restored": True}, LATER).all_cameras
    assert not sink.needs_of(task, {}, IN_LINE).observations
    assert not sink.needs_of(task, {"images": "all"}, IN_LINE).observations
    lossless = VideoSink("", VideoConfig(lossless=True))
    assert lossless.needs_of(task, {"images": "all"}, IN_LINE).observations


def test_an_encoder_that_fails_fails_the_attempt(tmp_path: Path) -> None:
    (tmp_path / "e").write_text("a file where the folder should be")
    track = open_track(tmp_path / "e")

    def play() -> None:
        for i in range(200):
            track.step(step(i, picture(i % 256)))
        track.seal(Outcome.SUCCESS)

    with pytest.raises(Exception, match="cannot be written"):
        play()
    track.discard()
    assert not [thread for thread in threading.enumerate() if thread.name == "hocket-video"]


def test_more_frames_than_the_queue_holds_all_arrive_in_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    sent = [rng.integers(0, 256, (48, 48, 3), dtype=np.uint8) for _ in range(150)]
    sink = VideoSink("", VideoConfig(lossless=True))
    track = sink.open(start(tmp_path, {"images": "all"}))
    for i, frame in enumerate(sent):
        track.step(step(i, {IMAGE: frame}))
    track.seal(Outcome.SUCCESS)
    got = frames(tmp_path / "image.lossless.m4v")
    assert all(np.array_equal(a, b) for a, b in zip(got, sent, strict=True))
    assert videos_in(tmp_path) == {}
    assert list(videos_in(tmp_path, lossless=True)) == ["image"]


def test_an_overlay_is_in_the_corner_and_tells_the_outcome_at_the_end(tmp_path: Path) -> None:
    for overlay in (False, True):
        track = open_track(tmp_path / str(overlay), overlay=overlay, crf=1)
        for i in range(12):
            track.step(step(i, picture(100, 224)))
        track.seal(Outcome.FAILURE)
    plain, burnt = (frames(tmp_path / str(overlay) / "image.mp4") for overlay in (False, True))
    for before, after in zip(plain, burnt, strict=True):
        changed = np.abs(before.astype(int) - after).max(axis=2) > 40
        assert changed[:30, :60].mean() > 0.3
        assert not changed[40:].any()
    widths = [int((np.abs(f[16:20].astype(int) - 100).max(axis=(0, 2)) > 40).sum()) for f in burnt]
    assert widths[11] > widths[9] + 30, "the last frame also says how it ended"


def test_cameras_are_named_without_their_prefix() -> None:
    assert file_name("observation/wrist_image") == "wrist_image.mp4"
    assert file_name("pixels/top", lossless=True) == "pixels.top.lossless.m4v"


def test_the_sink_is_found_by_its_name() -> None:
    from hocket.core import plugins

    assert isinstance(plugins.build("recorders", "video", {"overlay": True}), VideoSink)
    with pytest.raises(ConfigError):
        plugins.build("recorders", "video", {"overlai": True})


def test_a_fast_env_is_filmed_at_20_frames_a_second_with_its_last_step(tmp_path: Path) -> None:
    assert [stride_of(rate) for rate in (None, 10, 20, 30, 50, 80, 500)] == [1, 1, 1, 1, 2, 4, 25]
    sink = VideoSink("", VideoConfig())
    task = TaskInfo(name="push-v3", control_rate=80.0)
    assert sink.needs_of(task, {"video": "all"}, IN_LINE).stride == 4
    track = sink.open(start(tmp_path, {"video": "all"}, rate=80.0))
    for i in range(11):
        # Between two frames there may be an observation, for another sink, or none.
        track.step(step(i, picture(20 * i) if i % 4 == 0 or i in (3, 10) else None))
    track.seal(Outcome.SUCCESS)
    with av.open(str(tmp_path / "image.mp4")) as container:
        assert container.streams.video[0].average_rate == 20
    shown = [int(frame.mean()) for frame in frames(tmp_path / "image.mp4")]
    assert np.abs(np.array(shown) - [0, 80, 160, 200]).max() <= 4


def test_a_frame_that_is_due_must_be_there(tmp_path: Path) -> None:
    track = VideoSink("", VideoConfig()).open(start(tmp_path, {"video": "all"}, rate=80.0))
    track.step(step(0, picture(0)))
    with pytest.raises(ObservationError, match="no observation of step 4"):
        track.step(step(4, None))
    track.discard()
