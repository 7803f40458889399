"""Episodes rendered from their states by real workers, held against the same rendered in line."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from hocket.core.contracts.recorder import IMAGES, RESTORED, VIDEO
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Episode, Outcome, Ref, Trial
from hocket.records.video.rerender import Rendered, RenderJob, VideoWorkers, VideoWorkersConfig
from hocket.workers.local.runtime import LocalRuntime
from hocket.workers.notices import LaneFailed, LanesBegun, LaneSealed, LanesExecuted, LanesUp
from hocket.workers.sinks.states import FILE, ROWS_FILE, load_states, save_states
from hocket.workers.sinks.video import rerender_record
from support.rig import Rig

LOSSLESS = Ref(name="video", config={"lossless": True})
VIDEOS = (Ref(name="video"), LOSSLESS)
IN_LINE = {VIDEO: "all", IMAGES: "all", RESTORED: True}
"""As if the env could not be shown again."""


def play(
    folder: Path, suite: Ref, task: str, sinks: tuple[Ref, ...], record: dict[str, Any]
) -> tuple[Episode, list[list[str]]]:
    """One episode of twelve steps; and the keys that the policy was given at each decision."""
    trial = Trial(suite="toy", task=task, seed=3)
    rng = np.random.default_rng(5)
    seen: list[list[str]] = []
    with Rig(suite=suite, sinks=sinks, folder=str(folder), cameras=()) as rig:
        rig.wait(LanesUp)
        rig.fleet.begin([0], [0], [trial], [12], final_observation=False, record=[record])
        rig.wait(LanesBegun)
        chunk, ends = 0, 0
        while not ends:
            seen.append(sorted(rig.fleet.arrays(0)))
            rig.execute(rng.uniform(-1, 1, (5, 4)), chunk=chunk)
            executed = rig.wait(LanesExecuted)
            ends, chunk = executed.ends[0], chunk + 1
        sealed = next((n for n in rig.heard if isinstance(n, LaneSealed)), None)
        sealed = sealed or rig.wait(LaneSealed)
        assert not [notice for notice in rig.heard if isinstance(notice, LaneFailed)]
    outcome = Outcome.FAILURE
    files = tuple(sealed.files)
    episode = Episode(
        trial=trial, attempt=0, outcome=outcome, steps=12, total_reward=0.0, files=files
    )
    return episode, seen


def render_one(folder: Path, suite: Ref, episode: Episode, sinks: tuple[Ref, ...]) -> Rendered:
    spec = WorkerSpec(suites={"toy": suite}, sinks=sinks, folder=str(folder))
    states = partial(load_states, folder / "episodes" / episode.trial.slug / "0" / ROWS_FILE)
    record = {**rerender_record(episode), **rerender_record(episode, images=True)}
    job = RenderJob(episode=episode, states=states, record=record)
    (rendered,) = VideoWorkers(LocalRuntime, spec, [job], VideoWorkersConfig()).run()
    return rendered


def frames(path: Path) -> list[Array]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


METAWORLD = Ref(
    name="metaworld:drawer-open",
    config={"size": 48, "render": "fast", "cameras": ["corner2", "gripperPOV"]},
)


@pytest.mark.parametrize(
    ("suite", "task"),
    [
        (Ref(name="toy"), "image"),
        pytest.param(METAWORLD, "drawer-open-v3", marks=pytest.mark.slow),
    ],
)
def test_rendered_afterwards_is_rendered_in_line_to_the_pixel(
    tmp_path: Path, suite: Ref, task: str
) -> None:
    if suite is METAWORLD:
        pytest.importorskip("metaworld")
    now, later = tmp_path / "now", tmp_path / "later"
    in_line, seen_rendered = play(now, suite, task, VIDEOS, IN_LINE)
    episode, seen = play(later, suite, task, (Ref(name="states"), *VIDEOS), {VIDEO: "all"})
    assert [Path(file).name for file in episode.files] == [ROWS_FILE]
    rendered = render_one(later, suite, episode, VIDEOS)
    assert rendered.error is None
    assert sorted(rendered.files) == sorted(in_line.files)
    names = {Path(file).name for file in rendered.files}
    assert names == {
        f"{camera}{suffix}"
        for camera in ("image", "wrist_image")
        for suffix in (".mp4", ".lossless.m4v")
    }
    for file in rendered.files:
        before, after = frames(now / file), frames(later / file)
        is_thinned = suite is METAWORLD and file.endswith(".mp4")
        assert len(before) == (4 if is_thinned else 13), "at 80 steps a second, every fourth"
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)), file
        assert not np.array_equal(before[0], before[-1])
    assert seen_rendered == seen, "whether an attempt is rendered changes nothing for the policy"
    assert seen[0] == ["observation/state"]


def kept(root: Path, task: str, seed: int) -> RenderJob:
    """An episode whose states were kept by a toy, without running it."""
    trial = Trial(suite="toy", task=task, seed=seed)
    path = root / "episodes" / trial.slug / "0" / FILE
    states = np.array([[7 * i, 1, i, 50, seed] for i in range(6)], np.float64)
    path.parent.mkdir(parents=True)
    save_states(path, states)
    episode = Episode(trial=trial, attempt=0, outcome=Outcome.SUCCESS, steps=5, total_reward=0.0)
    record = rerender_record(episode)
    return RenderJob(episode=episode, states=partial(load_states, path), record=record)


def render_all(
    root: Path, jobs: list[RenderJob], toy: dict[str, Any], **config: Any
) -> list[Rendered]:
    spec = WorkerSpec(
        suites={"toy": Ref(name="toy", config=toy)}, sinks=(Ref(name="video"),), folder=str(root)
    )
    told: list[Rendered] = []
    workers = VideoWorkers(LocalRuntime, spec, jobs, VideoWorkersConfig(**config), told.append)
    rendered = workers.run()
    assert told == rendered
    return sorted(rendered, key=lambda some: some.job.episode.trial.seed)


def test_an_episode_that_cannot_be_rendered_costs_only_itself(tmp_path: Path) -> None:
    jobs = [kept(tmp_path, "image", seed) for seed in range(4)]
    paths = [next((tmp_path / "episodes" / f"toy-image-{seed}").rglob(FILE)) for seed in range(4)]
    paths[1].write_bytes(b"not states")
    save_states(paths[2], np.zeros((3, 2)))  # of another env
    rendered = render_all(tmp_path, jobs, {}, workers=2)
    assert [bool(some.error) for some in rendered] == [False, True, True, False]
    assert "cannot be read" in str(rendered[1].error)
    assert "not enough values to unpack" in str(rendered[2].error)
    assert all(len(frames(tmp_path / file)) == 6 for file in rendered[3].files)


def test_an_env_that_cannot_be_built_is_told_for_each_episode(tmp_path: Path) -> None:
    jobs = [kept(tmp_path, "image", seed) for seed in range(2)]
    rendered = render_all(tmp_path, jobs, {"raise_in_init": True})
    assert all("ToyError: This toy cannot be built." in str(some.error) for some in rendered)


def test_a_worker_that_dies_or_hangs_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "trouble.py").write_text(TROUBLE)
    jobs = [kept(tmp_path / "run", "image", seed) for seed in range(4)]
    spec = WorkerSpec(
        suites={"toy": Ref(name="trouble:suite")},
        sinks=(Ref(name="video"),),
        folder=str(tmp_path / "run"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        config = VideoWorkersConfig(frame_timeout_s=3.0)
        rendered = VideoWorkers(LocalRuntime, spec, jobs, config).run()
    errors = {some.job.episode.trial.seed: some.error for some in rendered}
    assert errors[0] is None
    assert "SIGKILL" in str(errors[1])
    assert "no frame for" in str(errors[2])
    assert errors[3] is None


TROUBLE = """
import os, signal, time
from hocket.testing.toy import CameraToyEnv, ToyConfig, ToySuite

class Env(CameraToyEnv):
    def set_state(self, state):
        super().set_state(state)
        if state[2] == 3 and state[4] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if state[2] == 3 and state[4] == 2:
            time.sleep(100)

class Suite(ToySuite):
    def make(self, task):
        return Env(task, ToyConfig())

def suite():
    return Suite("image")
"""


def test_a_task_without_cameras_is_tried_once_and_has_no_files(tmp_path: Path) -> None:
    jobs = [kept(tmp_path, "count", seed) for seed in range(3)]
    rendered = render_all(tmp_path, jobs, {"reset_s": 1.0})
    assert [(some.error, some.files) for some in rendered] == [(None, ())] * 3
    assert sum(some.seconds > 1.0 for some in rendered) == 1


def test_restored_states_are_the_ones_recorded(tmp_path: Path) -> None:
    episode, _ = play(tmp_path, Ref(name="toy"), "image", (Ref(name="states"),), {})
    states = load_states(tmp_path / episode.files[0])
    assert states.shape == (13, 5)
    assert states[:, 2].tolist() == list(range(13))
