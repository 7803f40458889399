"""Learning from recorded episodes: alone, beside another algorithm, and from any of their forms."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hocket.core.specs import ArraySpec, TaskInfo
from hocket.errors import ConfigError, RunFolderError, UsageError
from hocket.exports import export_run
from hocket.exports.collect import CollectConfig, collect
from hocket.runs.config import EvalConfig
from hocket.runs.demonstrations.chosen import ExportConfig, Silent
from hocket.train.cloner import Cloner
from hocket.train.data.reading import read_data
from hocket.train.data.store import Data, Wanted, open_data
from hocket.train.data.windows import Windows
from hocket.train.networks.contract import Shapes
from train.test_training import ENV, last_weights, records, run, same_weights, success

STATE, IMAGE = "observation/state", "observation/image"
BC: dict[str, Any] = {"algo": "bc", "steps": 4800, "minibatch": 16, "lr": 1e-3, "std": 0.2}


def demonstrate(folder: Path, episodes: int = 6, **plain: Any) -> Path:
    """A run folder with episodes that ended well."""
    named = {"env": (ENV,), "policy": "support.point_env:Homing", **plain}
    config = EvalConfig.from_plain({"episodes": episodes, "lanes": 1, "video": "none", **named})
    collect(CollectConfig(run=config, to="run"), folder)
    return folder


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(demonstrate(tmp_path_factory.mktemp("shown") / "demos"))


@pytest.fixture(scope="module")
def dataset(shown: str) -> str:
    out = Path(shown).with_name("dataset")
    export_run(Path(shown), "lerobot", out, ExportConfig(fps=10))
    return str(out)


@pytest.mark.slow
def test_a_clone_of_recorded_episodes_does_what_they_do(tmp_path: Path, shown: str) -> None:
    result = run(tmp_path, data=(shown,), eval_every=4800, eval_episodes=5, **BC)
    assert result.complete
    assert success(result) == [0.0, 1.0]
    losses = [record["learn/cloning_loss"] for record in records(result, "update")]
    assert losses[-1] < losses[0] / 3
    before = last_weights(result.run)["log_std"]
    assert torch.allclose(before, torch.full_like(before, np.log(0.2)))
    # What it learnt is what another algorithm begins with, and what it stands beside.
    better = run(
        tmp_path,
        "better",
        policy=str(result.run / "best"),
        policy_config={},
        data=(shown,),
        steps=100,
        eval_every=100,
        eval_episodes=5,
    )
    assert success(better)[0] == 1.0
    assert all(record["learn/cloning_loss"] < 0.1 for record in records(better, "update"))


@pytest.mark.slow
def test_a_resumed_clone_is_the_one_that_was_never_interrupted(
    tmp_path: Path, shown: str, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {**BC, "steps": 3200, "data": (shown, dataset), "eval_every": 1600, "eval_episodes": 2}
    whole = run(tmp_path, "whole", **named)
    account = Cloner._account

    def interrupted(self: Cloner, updated: Any) -> None:
        signal.raise_signal(signal.SIGINT)  # the update ends nevertheless
        account(self, updated)

    with monkeypatch.context() as patched:
        patched.setattr(Cloner, "_account", interrupted)
        # Whoever runs the tests may have told them not to hear Ctrl-C.
        patched.setattr(signal, "getsignal", lambda _: signal.default_int_handler)
        part = run(tmp_path, "part", **named)
    assert (part.complete, part.env_steps) == (False, 1600)
    rest = run(tmp_path, "part", resume=True, **named)
    assert (rest.complete, rest.env_steps) == (True, 3200)
    assert same_weights(whole.run, rest.run)
    assert success(whole) == success(rest)


@pytest.mark.slow
def test_a_flow_policy_is_cloned_by_its_own_loss(tmp_path: Path, shown: str) -> None:
    flow = {"policy": "flow", "policy_config": {"chunk_length": 4, "hidden": (32, 32)}}
    result = run(tmp_path, data=(shown,), **{**BC, **flow, "steps": 3200})
    losses = [record["learn/cloning_loss"] for record in records(result, "update")]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_async_training_learns_from_demonstrations_too(tmp_path: Path, shown: str) -> None:
    result = run(tmp_path, data=(shown,), mode="async", steps=300)
    assert all("learn/cloning_loss" in record for record in records(result, "update"))


def _read(folder: Path, name: str, *, images: bool, **changes: Any) -> Data:
    observations = {STATE: ArraySpec(shape=(5,), dtype="float32")}
    observations |= {IMAGE: ArraySpec(shape=(24, 24, 3), dtype="uint8")} if images else {}
    plain = {"observations": observations, "action_size": 4, "tasks": ("image",), **changes}
    wanted = Wanted(
        shapes=Shapes(cameras=(IMAGE,) if images else (), **plain),
        tasks=[TaskInfo(name=task) for task in plain["tasks"]],
        inputs=tuple(plain["observations"]),
        first=None,
    )
    read_data([name], wanted, folder, Silent())
    return open_data(folder)


TOY = {"length_min": 4, "length_max": 9, "image_size": 24}


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A run with pictures, and the dataset of its successes."""
    folder = tmp_path_factory.mktemp("pictured")
    toy = {"env": ("toy:image",), "env_config": TOY, "policy": "scripted"}
    demonstrate(folder / "run", 3, **toy)
    export_run(folder / "run", "lerobot", folder / "dataset", ExportConfig(crf=1))
    return str(folder / "run"), str(folder / "dataset")


@pytest.mark.slow
def test_a_run_and_the_dataset_made_of_it_are_the_same_data(
    tmp_path: Path, pictured: tuple[str, str]
) -> None:
    one, other = (_read(tmp_path / str(i), name, images=True) for i, name in enumerate(pictured))
    assert len(one) == len(other) > 12
    np.testing.assert_allclose(one.actions, other.actions)
    np.testing.assert_array_equal(one.last, other.last)
    np.testing.assert_allclose(one.observations[STATE], other.observations[STATE], rtol=1e-6)
    assert one.observations[IMAGE].shape == (len(one), 24, 24, 3)
    grey = [data.observations[IMAGE] @ [0.299, 0.587, 0.114] for data in (one, other)]
    assert np.abs(grey[0] - grey[1]).mean() < 6, "a video loses colour, and hardly brightness"
    assert one.texts == other.texts == ("play image",)


def test_a_chunk_ends_with_its_episode(tmp_path: Path, pictured: tuple[str, str]) -> None:
    data = _read(tmp_path / "data", pictured[0], images=False)
    last = int(data.last[0])
    window = Windows(data, 4).at(np.array([last - 1, 0]))
    assert window.mask.tolist() == [[True, True, False, False], [True] * 4]
    torch.testing.assert_close(window.actions[0, 1], window.actions[0, 3])
    np.testing.assert_array_equal(window.actions[1], data.actions[:4])
    assert window.observation.prompts == ["play image"] * 2


def test_a_history_begins_with_its_episode(tmp_path: Path, pictured: tuple[str, str]) -> None:
    data = _read(tmp_path / "data", pictured[0], images=False)
    second = int(data.last[0]) + 2
    seen = Windows(data, 4, history=3).seen(np.array([second, second + 2]))[STATE]
    rows = [[second - 1, second - 1, second], [second, second + 1, second + 2]]
    np.testing.assert_array_equal(seen, data.observations[STATE][np.array(rows)])


@pytest.mark.slow
def test_what_does_not_fit_is_refused_in_words(tmp_path: Path, pictured: tuple[str, str]) -> None:
    out = tmp_path / "data"
    joints = {"observation/joints": ArraySpec(shape=(2,), dtype="float32")}
    with pytest.raises(RunFolderError, match="lacks 'observation/joints'"):
        _read(out, pictured[0], images=False, observations=joints)
    with pytest.raises(RunFolderError, match="has actions of shape"):
        _read(out, pictured[0], images=False, action_size=7)
    with pytest.raises(UsageError, match="and none of other"):
        _read(out, pictured[0], images=False, tasks=("other",))
    with pytest.raises(UsageError, match="nothing to learn from"):
        _read(out, pictured[1], images=False, tasks=("other", "another"))
    with pytest.raises(UsageError, match="neither a run folder nor"):
        _read(out, str(tmp_path), images=False)
    assert not out.exists()


def test_a_dataset_of_another_version_is_refused(tmp_path: Path, pictured: tuple[str, str]) -> None:
    (tmp_path / "old" / "meta").mkdir(parents=True)
    info = json.loads((Path(pictured[1]) / "meta" / "info.json").read_text())
    text = json.dumps({**info, "codebase_version": "v2.1"})
    (tmp_path / "old" / "meta" / "info.json").write_text(text)
    with pytest.raises(UsageError, match=r"v2\.1; v3\.0 is read"):
        _read(tmp_path / "data", str(tmp_path / "old"), images=False)


def test_no_folder_is_left_where_the_data_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run(tmp_path, data=(str(tmp_path / "nowhere"),), **BC)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algo": "bc"}, "name them with --data"),
        ({"algo": "bc", "data": ("x",), "mode": "async"}, "bc learns from recordings"),
        ({"data": ("x",), "residual": True}, "leave out --data, or --residual"),
        ({"bc_weight": -1.0}, "at least 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run(tmp_path, **changes)
