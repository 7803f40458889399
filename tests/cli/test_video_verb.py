"""`hocket video` and `hocket replay`, as a user runs them."""

from __future__ import annotations

import shutil
from pathlib import Path

import av
import pytest
import yaml

from hocket.core.data import Array
from support.changed_states import change_states, drop_states
from support.commands import run_here, run_process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a run of five episodes, one of them filmed."""
    place = tmp_path_factory.mktemp("runs")
    done = run_here(
        place,
        *("eval", "--env", "toy:image", "--policy", "random", "--episodes", "5", "--lanes", "2"),
        *("--out", "a", "--video", "first:1", "--video-overlay"),
    )
    assert done.returncode == 0, done.stderr
    return place


def videos(folder: Path) -> set[str]:
    return {
        f"{path.parent.parent.name[-1]}/{path.name}" for path in (folder / "a").rglob("[!.]*.mp4")
    }


def test_a_run_says_in_its_file_what_it_filmed(folder: Path) -> None:
    saved = yaml.safe_load((folder / "a" / "run.yaml").read_text())
    assert (saved["video"], saved["video_overlay"], saved["record"]) == ("first:1", True, "numbers")
    assert {"0/image.mp4", "0/wrist_image.mp4"} <= videos(folder)


def test_video_films_what_is_chosen_and_skips_what_is_there(folder: Path) -> None:
    first = run_process(folder, "video", "a", "image/3", "--camera", "observation/image")
    assert first.returncode == 0, first.stderr
    assert "1 episodes to film, 0 there already" in first.stderr
    assert first.stdout == "[1/1] toy:image/image/3: episodes/toy-image-image-3/0/image.mp4\n"
    assert "3/wrist_image.mp4" not in videos(folder)
    again = run_here(folder, "video", "a", "image/3", "--camera", "observation/image")
    assert "0 episodes to film, 1 there already" in again.stderr
    assert again.stdout == ""
    default = run_here(folder, "video", "a")
    assert "0 episodes to film, 1 there already" in default.stderr


@pytest.mark.slow
def test_video_films_failures_and_images(folder: Path) -> None:
    done = run_here(folder, "video", "a", "--failures", "--workers", "1")
    assert done.returncode == 0, done.stderr
    done = run_here(folder, "video", "a", "image/4", "--images")
    assert done.returncode == 0, done.stderr
    path = folder / "a" / "episodes" / "toy-image-image-4" / "0" / "image.lossless.m4v"
    with av.open(str(path), format="mp4") as container:
        assert container.streams.video[0].codec_context.pix_fmt == "gbrp"


def test_a_run_without_states_cannot_be_filmed_and_says_why(folder: Path) -> None:
    done = run_here(
        folder,
        *("eval", "--env", "toy:pixels", "--policy", "random", "--episodes", "1", "--lanes", "1"),
        *("--out", "b", "--video", "none"),
    )
    assert done.returncode == 0, done.stderr
    done = run_here(folder, "video", "b", "--all")
    assert done.returncode == 1
    assert "1 without states" in done.stderr
    assert "filmed while they run" in done.stderr


def test_a_wish_that_is_none_is_refused(folder: Path) -> None:
    done = run_here(
        folder, "eval", "--env", "toy:image", "--policy", "random", "--video", "last:1", "--dry-run"
    )
    assert done.returncode == 2
    assert "write few, none, first:N" in done.stderr


def test_video_of_no_run_is_refused(folder: Path) -> None:
    assert run_here(folder, "video", "nowhere").returncode == 2
    assert run_here(folder, "video", "a", "image/9").returncode == 2


@pytest.mark.slow
def test_replay_verifies_with_actions_and_with_the_policy(folder: Path) -> None:
    for flags in ((), ("--with-policy",)):
        done = run_process(folder, "replay", "a", "image/2", *flags)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("toy:image/image/2: identical: ")


def test_replay_names_the_first_difference_and_exits_with_1(folder: Path) -> None:
    shutil.copytree(folder / "a", folder / "c", dirs_exist_ok=True)
    drop_states(folder / "c")
    done = run_here(folder, "replay", "c", "image/1")
    assert done.returncode == 0, "rewards and observations are compared without states too"
    assert "simulator state" not in done.stdout

    def push(states: Array) -> None:
        states[4, 1] += 1

    shutil.copytree(folder / "a", folder / "d")
    change_states(folder / "d", "toy:image/image/0", push)
    done = run_here(folder, "replay", "d", "image/0")
    assert done.returncode == 1
    assert "step 4: simulator state[1] differs (by up to 1)" in done.stdout
    assert "recorded: " in done.stdout
