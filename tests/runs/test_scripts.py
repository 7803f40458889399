"""Envs that live where they are tried: in a script, in a notebook."""

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.core.data import Trial
from hocket.core.events import Noted, RunStarted
from hocket.errors import UsageError
from hocket.results.showing.progress import NotebookProgress, ProgressDisplay, open_progress
from hocket.runs.evaluation import name_of
from support.processes import DEADLINE_S, wait_until

ENV = """
import gymnasium, numpy as np, hocket

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    max_steps = 3
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}
    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {"success": True}

"""
CALL = "hocket.evaluate(env=Mine, policy='random', episodes=2, lanes={}, progress=True)"


def python(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "try_it.py").write_text(text)
    return subprocess.run(
        [sys.executable, "try_it.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.slow
def test_an_env_of_the_running_script_is_found_by_workers(tmp_path: Path) -> None:
    call = f"if __name__ == '__main__':\n    print('rate', {CALL.format(2)}.overall.rate)\n"
    done = python(tmp_path, ENV + call)
    assert "rate 1.0" in done.stdout, done.stderr
    assert "2/2 episodes" in done.stderr


@pytest.mark.slow
def test_a_script_that_would_run_itself_again_is_told_how_it_is_kept_from_it(
    tmp_path: Path,
) -> None:
    done = python(tmp_path, ENV + CALL.format(2))
    assert done.returncode == 1
    assert "if __name__ == '__main__':" in done.stderr.splitlines()[-1] + done.stderr


def cell(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of a notebook's cell: in a `__main__` without a file."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(ENV, vars(main))
    return vars(main)["Mine"]


def test_an_env_of_a_notebook_runs_in_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    report = hocket.evaluate(env=cell(monkeypatch), policy="random", episodes=2, lanes=1)
    assert report.overall.rate == 1.0


def test_an_env_of_a_notebook_in_workers_is_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match=r"my_envs\.py:NAME.* lanes=1"):
        name_of(cell(monkeypatch))


class Display:
    """IPython's, as far as progress needs it."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def get_ipython(self) -> Any:
        return types.SimpleNamespace(kernel=None)

    def display(self, thing: object, *, display_id: bool) -> Any:
        assert display_id
        self.update(thing)
        return self

    def update(self, thing: object) -> None:
        self.shown.append(repr(thing))


def test_a_notebook_shows_progress_in_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Display()
    monkeypatch.setitem(sys.modules, "IPython", screen)
    monkeypatch.setitem(sys.modules, "IPython.display", screen)
    progress = open_progress(wanted=None)
    assert isinstance(progress, NotebookProgress)
    with progress:
        trials = [Trial(suite="s", task="t", seed=0)]
        spec = hocket.PolicySpec(chunk_length=1, action_size=1)
        progress.on(RunStarted(trials=trials, done=[], lanes=1, cores=1, policy=spec))
        progress.on(Noted(text="The camera is upside down."))
        wait_until(lambda: "0/1 episodes" in screen.shown[-1])
    assert "preparing" in screen.shown[0]
    assert "note: The camera is upside down." in screen.shown[-1]


def test_elsewhere_progress_is_shown_on_a_terminal_or_where_it_is_wanted() -> None:
    assert open_progress(wanted=False) is None
    assert open_progress(wanted=None) is None, "the tests' standard error is no terminal"
    assert isinstance(open_progress(wanted=True), ProgressDisplay)
