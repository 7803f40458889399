"""The verbs that run something, as a user runs them, in a folder with own modules."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from hocket.core.data import Episode
from hocket.errors import RunFolderError
from hocket.records.ledger.view import LedgerView
from support.commands import command, run_here, run_process
from support.processes import DEADLINE_S, wait_until

MODULE = '''
import time

import gymnasium
import numpy as np

from hocket import ArraySpec, PolicySpec


class Room(gymnasium.Env):
    """Ends after five steps; succeeds where the seed is even."""

    max_steps = 5
    control_rate = 10.0

    def __init__(self, pause: float = 0.0, broken: bool = False):
        self.pause, self.broken = pause, broken
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {"state": box(-9, 9, (3,), np.float32), "image": box(0, 255, (24, 32, 3), np.uint8)}
        )
        self.action_space = box(-1, 1, (2,), np.float32)

    def _observation(self):
        image = np.zeros((24, 32, 3), np.uint8)
        image[0, 0] = (255, 0, 0)
        return {"state": np.full(3, self.draw, np.float32), "image": image}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.good, self.steps = seed % 2 == 0, 0
        self.draw = self.np_random.uniform()
        return self._observation(), {}

    def step(self, action):
        time.sleep(self.pause)
        if self.broken:
            raise RuntimeError("the floor is wet")
        self.steps += 1
        success = self.good and self.steps == 4
        return self._observation(), float(action[0]), False, False, {"success": success}


class Still:
    spec = PolicySpec(chunk_length=4, action_size=2)

    def infer(self, batch):
        return np.zeros((batch.size, 4, 2)) + batch.arrays["observation/state"][:, :1, None]

    def close(self): ...


class Raising(Still):
    def infer(self, batch):
        return batch.arrays["observation/depth"]


class Misfit(Still):
    spec = PolicySpec(
        chunk_length=4,
        action_size=7,
        inputs={"observation/stat": ArraySpec(shape=(3,), dtype="float32")},
        control_rate=20.0,
    )
'''
SUBJECT = ("--env", "rooms:Room", "--policy", "rooms:Still")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rooms.py").write_text(MODULE)
    return tmp_path


def test_json_goes_to_standard_output_and_progress_to_a_pipe(folder: Path) -> None:
    done = run_process(folder, "eval", *SUBJECT, "--episodes", "4", "--lanes", "2", "--json")
    assert done.returncode == 0
    first, *_, last = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert "preparing" in first or "waiting for" in first
    assert "4/4 episodes" in last
    report = json.loads(done.stdout)
    assert report["overall"]["n"] == 4
    assert report["overall"]["successes"] == 2


def test_a_run_file_reproduces_its_run_and_flags_override_it(folder: Path) -> None:
    first = run_here(
        folder,
        "eval",
        *SUBJECT,
        "--episodes",
        "3",
        "--lanes",
        "1",
        "--out",
        "a",
        "--env.pause=0.001",
    )
    assert first.returncode == 0, first.stderr
    saved = yaml.safe_load((folder / "a" / "run.yaml").read_text())
    assert saved["env_config"] == {"pause": 0.001}
    assert saved["about"]["versions"]["python"]
    again = run_here(folder, "eval", "--config", "a", "--out", "b", "--lanes", "2")
    assert again.returncode == 0, again.stderr
    reports = [json.loads((folder / name / "report.json").read_text()) for name in "ab"]
    assert reports[0]["episodes"] == reports[1]["episodes"]
    assert reports[1]["config"] == {**reports[0]["config"], "lanes": 2}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("episods: 3", "no setting 'episods'. Did you mean 'episodes'?"),
        ("episodes: many", "episodes is 'many'; it must be a whole number."),
    ],
)
def test_a_run_file_that_is_wrong_is_told_in_a_sentence(folder: Path, line: str, says: str) -> None:
    (folder / "mine.yaml").write_text(line + "\n")
    done = run_here(folder, "eval", "--config", "mine.yaml")
    assert done.returncode == 2
    assert f"hocket: mine.yaml: {says}" in done.stderr.replace("A run has ", "")


def test_a_folder_that_holds_a_run_is_refused(folder: Path) -> None:
    arguments = ("eval", *SUBJECT, "--episodes", "1", "--lanes", "1", "--out", "a")
    assert run_here(folder, *arguments).returncode == 0
    before = (folder / "a" / "report.json").read_bytes()
    again = run_here(folder, *arguments)
    assert again.returncode == 2
    assert "a already holds a run" in again.stderr
    assert (folder / "a" / "report.json").read_bytes() == before


def test_without_out_the_folder_is_named_after_time_env_and_policy(folder: Path) -> None:
    done = run_here(folder, "eval", *SUBJECT, "--episodes", "1", "--lanes", "1")
    (made,) = (folder / "runs").iterdir()
    assert made.name.endswith("-rooms-Room-rooms-Still")
    assert str(made.relative_to(folder)) in done.stdout.replace("\n", "")


def test_an_env_that_raises_is_shown_once_with_its_own_traceback(folder: Path) -> None:
    done = run_here(
        folder,
        "eval",
        *SUBJECT,
        "--episodes",
        "3",
        "--lanes",
        "2",
        "--env.broken",
        "--retries",
        "1",
    )
    assert done.returncode == 1
    assert done.stderr.count('raise RuntimeError("the floor is wet")') == 1
    assert "5 more failed attempts not shown" in done.stderr


def test_an_interrupted_run_reports_what_is_done_and_exits_with_130(folder: Path) -> None:
    arguments = ("--episodes", "400", "--lanes", "2", "--env.pause", "0.02", "--out", "a")
    with subprocess.Popen(
        command("eval", *SUBJECT, *arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_until(lambda: any(ended_in(folder / "a")))
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "INCOMPLETE" in out
    assert json.loads((folder / "a" / "report.json").read_text())["complete"] is False


def ended_in(folder: Path) -> list[Episode]:
    try:
        with LedgerView.open(folder) as ledger:
            return list(ledger.episodes())
    except RunFolderError:
        return []


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_before_an_episode_ended_does_not_block_the_same_command(
    folder: Path, end: signal.Signals
) -> None:
    arguments = ("--episodes", "2", "--lanes", "2", "--env.pause", "9", "--out", "a")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command("eval", *SUBJECT, *arguments), cwd=folder, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            assert process.stderr is not None
            next(line for line in process.stderr if "warming up" in line)
            process.send_signal(end)
            said, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    if end is signal.SIGINT:
        assert "no run folder is left" in said
        assert "hocket resume" not in said
    again = run_here(folder, "eval", *SUBJECT, "--episodes", "1", "--lanes", "1", "--out", "a")
    assert again.returncode == 0, again.stderr


def test_a_dry_run_writes_nothing(folder: Path) -> None:
    done = run_here(folder, "eval", *SUBJECT, "--episodes", "7", "--seed", "3", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "7 trials" in done.stdout
    assert "3-9" in done.stdout
    assert not (folder / "runs").exists()


def test_check_shows_both_sides_and_draws_the_policys_images(folder: Path) -> None:
    done = run_process(folder, "check", *SUBJECT, "--out", "sheet.png")
    assert done.returncode == 0, done.stderr
    for part in ("24x32x3 uint8", "observation/state", "10 Hz", "-1 to 1", "Env and policy fit."):
        assert part in done.stdout
    assert (folder / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_check_names_every_mismatch_and_fails(folder: Path) -> None:
    done = run_here(folder, "check", "--env", "rooms:Room", "--policy", "rooms:Misfit")
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "'observation/stat', which the env does not give. Did you mean" in text
    assert "7 numbers an action; the env is driven by 2" in text
    assert "20 steps a second; the env runs at 10" in text


def test_eval_refuses_a_misfit_before_it_begins(folder: Path) -> None:
    done = run_here(
        folder, "eval", "--env", "rooms:Room", "--policy", "rooms:Misfit", "--lanes", "1"
    )
    assert done.returncode == 1
    assert "observation/stat" in done.stderr


def test_check_tells_of_an_env_that_cannot_run(folder: Path) -> None:
    done = run_here(folder, "check", *SUBJECT, "--env.broken")
    assert done.returncode == 1
    assert "the floor is wet" in done.stdout


def test_check_tells_of_a_policy_that_raises(folder: Path) -> None:
    done = run_here(folder, "check", "--env", "rooms:Room", "--policy", "rooms:Raising")
    assert done.returncode == 1
    assert "KeyError: 'observation/depth'" in done.stdout
    assert "24x32x3 uint8" in done.stdout, "what the policy was given is shown all the same"


def test_check_looks_at_the_envs_that_have_the_task_asked_for(folder: Path) -> None:
    several = ("--env", "toy:image,rooms:Room", "--policy", "rooms:Still")
    done = run_here(folder, "check", *several, "--task", "Room")
    assert done.returncode == 0, done.stderr
    assert "toy:image" not in done.stdout
    done = run_here(folder, "check", *several, "--task", "Rom")
    assert done.returncode == 2
    assert "Did you mean 'Room'?" in done.stderr


def test_check_looks_at_the_task_asked_for(folder: Path) -> None:
    done = run_here(folder, "check", *SUBJECT, "--task", "Rom")
    assert done.returncode == 2
    assert "Did you mean 'Room'?" in done.stderr
