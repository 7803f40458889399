"""What works with what: every verb with every kind of env, policy and number of lanes.

Each cell is really run, on toys. A part of them that has every pair of verb, env and policy runs
always, all of them with the slow tests.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hocket
from hocket.exports.collect import CollectConfig, collect
from hocket.runs.checks.check import run_check
from hocket.serve.backend import PolicyBackend, PolicyOptions
from hocket.serve.metrics import Metrics
from support.interpreters import SIMULATORS, interpreter
from support.matrix_toys import Steady
from support.running_server import running

VERBS = ("check", "eval", "collect", "train")
ENVS = {
    "plain": {"env": ("support.matrix_toys:Point",)},
    "plain, own interpreter": {"env": ("support.matrix_toys:Point",), "env_python": ...},
    "batched": {"env": ("support.row_toys:RowToys",)},
    "batched, several simulators": {
        "env": ("support.row_toys:RowToys",),
        "env_config": {"apart": True},
    },
    "batched, own interpreter": {"env": ("support.row_toys:RowToys",), "env_python": ...},
}
POLICIES = {
    "object": {"policy": "support.matrix_toys:Steady"},
    "torch": {"policy": "torch:support.matrix_toys:module"},
    "other interpreter": {"policy": "support.matrix_toys:Steady", "policy_python": ...},
    "OpenPI server": {"policy": "openpi://"},
}
LANES = {"1": 1, "many": 3, "auto": "auto"}


class Cell(NamedTuple):
    """One combination, by its names."""

    verb: str
    env: str
    policy: str
    lanes: str


ALL = [Cell(*names) for names in itertools.product(VERBS, ENVS, POLICIES, LANES)]
ALWAYS = [
    Cell(verb, env, list(POLICIES)[(v + e) % len(POLICIES)], list(LANES)[(v + 2 * e) % len(LANES)])
    for v, verb in enumerate(VERBS)
    for e, env in enumerate(ENVS)
    if (v + e) % len(ENVS) < 3  # a dozen, with every kind among them
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return interpreter(tmp_path_factory.mktemp("interpreter") / "venv", *SIMULATORS, "av")


@pytest.fixture
def run_cell(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(Path(__file__).parent)  # where other interpreters find the toys

    def run(cell: Cell) -> None:
        with contextlib.ExitStack() as stack:
            settings: dict[str, Any] = {**ENVS[cell.env], **POLICIES[cell.policy]}
            settings |= {key: python for key, value in settings.items() if value is ...}
            if cell.policy == "OpenPI server":
                settings["policy"] += stack.enter_context(_server())
            RUNS[cell.verb](settings, LANES[cell.lanes], cell.policy, tmp_path)

    return run


@contextlib.contextmanager
def _server() -> Iterator[str]:
    metrics = Metrics()
    options = PolicyOptions(name="steady", warm_up=False)
    with running(PolicyBackend(Steady(), options, metrics), metrics) as server:
        try:
            yield server.address
        finally:
            server.stop()


def _check(settings: dict[str, Any], lanes: Any, policy: str, folder: Path) -> None:
    result = run_check(hocket.EvalConfig.from_plain({**settings, "lanes": lanes}))
    assert result.problems == ()
    assert result.actions is not None


def _eval(settings: dict[str, Any], lanes: Any, policy: str, folder: Path) -> None:
    given: Any = Steady() if policy == "object" else settings["policy"]
    report = hocket.evaluate(
        **{**settings, "policy": given}, lanes=lanes, episodes=3, retries=0, out=folder / "run"
    )
    assert report.complete
    assert report.overall.errors == 0
    assert len(report.episodes) == 3 * (1 if "Point" in settings["env"][0] else 2)


def _collect(settings: dict[str, Any], lanes: Any, policy: str, folder: Path) -> None:
    run = hocket.EvalConfig.from_plain(
        {**settings, "lanes": lanes, "episodes": 2, "retries": 0, "video": "none"}
    )
    given = Steady() if policy == "object" else None
    config = CollectConfig(run=run, to="hdf5", failures=True)
    done = collect(config, folder / "data.hdf5", policy=given)
    assert done.is_complete
    assert done.episodes == 2 * (1 if "Point" in settings["env"][0] else 2)
    assert (folder / "data.hdf5").stat().st_size > 0


def _train(settings: dict[str, Any], lanes: Any, policy: str, folder: Path) -> None:
    from hocket.train.config import TrainConfig
    from hocket.train.loop import train

    # What cannot be differentiated here is left as it is: a correction is trained beside it.
    own = {"residual": True}
    if policy == "torch":
        own = {"policy": "actor", "policy_config": {"chunk_length": 4, "hidden": (8,)}}
    plain = {"steps": 40, "batch": 4, "epochs": 1, "minibatch": 1000, "eval_every": 0}
    config = TrainConfig.from_plain({**settings, **own, **plain, "lanes": lanes, "retries": 0})
    result = train(config, folder / "run", say=None)
    assert result.complete
    assert result.env_steps >= 40


RUNS = {"check": _check, "eval": _eval, "collect": _collect, "train": _train}


@pytest.mark.parametrize("cell", ALWAYS, ids="/".join)
def test_every_verb_runs_with_every_kind_of_env_and_policy(run_cell: Any, cell: Cell) -> None:
    run_cell(cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [c for c in ALL if c not in ALWAYS], ids="/".join)
def test_every_cell_of_the_matrix_runs(run_cell: Any, cell: Cell) -> None:
    run_cell(cell)
