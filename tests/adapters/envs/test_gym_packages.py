"""Envs that only `gym:` knows, in an interpreter of their own: run, filmed and exported."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.commands import run_here
from support.lerobot_reader_process import read_with_lerobot
from support.parts import needs_venv, python_of

PYTHON = python_of("gym")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_venv("gym"),
]
PIXELS = '{"obs_type": "pixels_agent_pos"}'


def evaluated(folder: Path, env: str, *flags: str) -> dict[str, Any]:
    done = run_here(
        folder,
        "eval",
        *("--env", env, "--env-python", str(PYTHON), "--policy", "random", "--episodes", "1"),
        *("--max-steps", "6", "--out", "run", "--json", *flags),
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["overall"]["errors"] == 0
    return report


@pytest.mark.parametrize(
    ("env", "flags", "judged"),
    [
        ("gym:gym_pusht/PushT-v0", ("--env.kwargs", PIXELS), True),
        ("gym:gym_aloha/AlohaTransferCube-v0", ("--env.kwargs", PIXELS), True),
        ("gym:gymnasium_robotics:FetchReach-v4", ("--env.render",), True),
        ("gym:gymnasium_robotics:AdroitHandDoor-v1", ("--env.render",), True),
        ("gym:shimmy:dm_control/cartpole-balance-v0", ("--env.render",), False),
    ],
)
def test_an_env_is_run_filmed_and_exported(
    tmp_path: Path, env: str, flags: tuple[str, ...], judged: bool
) -> None:
    report = evaluated(tmp_path, env, "--record", "full", *flags)
    assert (report["overall"]["rate"] is not None) == judged
    films = list((tmp_path / "run" / "episodes").glob("**/*.mp4"))
    assert films
    done = run_here(tmp_path, "export", "run", "--to", "lerobot", "--out", "dataset")
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "dataset" / "meta" / "info.json").read_text())
    assert info["total_episodes"] == 1
    assert any(feature["dtype"] == "video" for feature in info["features"].values())


@needs_venv("lerobot")
@pytest.mark.parametrize(
    ("env", "fps", "moves"),
    [("gym:gym_pusht/PushT-v0", 10, 2), ("gym:gym_aloha/AlohaTransferCube-v0", 50, 14)],
)
def test_lerobot_opens_what_is_exported(tmp_path: Path, env: str, fps: int, moves: int) -> None:
    report = evaluated(tmp_path, env, "--record", "full", "--env.kwargs", PIXELS)
    done = run_here(tmp_path, "export", "run", "--to", "lerobot", "--out", "dataset")
    assert done.returncode == 0, done.stderr
    told, read = read_with_lerobot(tmp_path / "dataset", tmp_path)
    steps = report["episodes"][0]["steps"]
    assert (told["episodes"], told["frames"], told["fps"]) == (1, steps, fps)
    assert read["action"].shape == (steps, moves)
    assert told["cameras"]
    for camera in told["cameras"]:
        assert len(read[camera]) == steps
        assert read[camera].std() > 0.01, "a picture of something"


def test_the_same_trials_come_out_alike_in_other_numbers_of_lanes(tmp_path: Path) -> None:
    for lanes in ("1", "3"):
        (tmp_path / lanes).mkdir()
    env = "gym:gym_pusht/PushT-v0"
    alone, three = (evaluated(tmp_path / lanes, env, "--lanes", lanes) for lanes in ("1", "3"))
    assert [e["return"] for e in alone["episodes"]] == [e["return"] for e in three["episodes"]]
