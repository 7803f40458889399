from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hocket import cli
from hocket.core.data import Outcome
from hocket.core.events import EpisodesSealed
from hocket.errors import ConfigError, MissingExtraError, UsageError
from hocket.exports.collect import CollectConfig, TooFewError, collect, run_folder
from hocket.records.ledger.view import LedgerView
from hocket.runs.config import EvalConfig
from hocket.runs.demonstrations.chosen import ExportConfig
from hocket.workers.sinks.encoder import read_pictures

TOY = {"length_min": 4, "length_max": 9, "image_size": 24}


def config(episodes: int = 4, *, policy: str = "scripted", **settings: Any) -> CollectConfig:
    run = EvalConfig.from_plain(
        {
            "env": ("toy:image",),
            "policy": policy,
            "episodes": episodes,
            "seed": 3,
            "lanes": 2,
            "video": "none",
            "env_config": TOY,
        }
    )
    return CollectConfig(run=run, **settings)


def lengths(dataset: Path) -> list[int]:
    files = sorted(dataset.glob("meta/episodes/**/*.parquet"))
    return [row for file in files for row in pq.read_table(file)["length"].to_pylist()]


@pytest.mark.slow
def test_a_dataset_has_the_number_of_successes_that_was_asked_for(tmp_path):
    out = tmp_path / "data"
    done = collect(config(), out)
    assert done.episodes == 4
    assert done.trials > 4, "half of the toy's episodes fail, so that more had to be run"
    with LedgerView.open(run_folder(out, "lerobot")) as ledger:
        won = [e for e in ledger.episodes() if e.outcome is Outcome.SUCCESS]
    first = sorted(won, key=lambda episode: episode.trial.seed)[:4]
    assert lengths(out) == [episode.steps for episode in first]
    info = json.loads((out / "meta" / "info.json").read_text())
    assert info["total_episodes"] == 4


def test_failures_are_collected_when_asked_for(tmp_path):
    done = collect(config(failures=True), tmp_path / "data")
    assert (done.episodes, done.trials) == (4, 4)
    assert len(lengths(tmp_path / "data")) == 4


def test_the_run_alone_can_be_collected(tmp_path):
    done = collect(config(to="run"), tmp_path / "run")
    assert done.run == tmp_path / "run"
    assert (tmp_path / "run" / "ledger.sqlite").exists()
    assert not (tmp_path / "run.run").exists()


@pytest.mark.slow
def test_an_interrupted_collection_goes_on_where_it_was(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    collect(config(), whole)

    class Interrupts:
        def __init__(self):
            # Two lanes seal two episodes at once at most, so that some are left to run.
            self.left = 1

        def on(self, event):
            if isinstance(event, EpisodesSealed):
                self.left -= len(event.episodes)
                if self.left <= 0:
                    raise KeyboardInterrupt

        def close(self): ...

    try:
        done = collect(config(), broken, readers=lambda: [Interrupts()])
    except KeyboardInterrupt:
        pass
    else:
        assert not done.is_complete
    assert not broken.exists()
    assert run_folder(broken, "lerobot").exists()
    again = collect(config(), broken)
    assert again.is_complete
    assert lengths(broken) == lengths(whole)


def test_a_collection_of_other_settings_is_not_mixed_in(tmp_path):
    collect(config(2, to="run"), tmp_path / "run")
    with pytest.raises(UsageError, match="another episodes"):
        collect(config(3, to="run"), tmp_path / "run")


def test_further_rounds_go_on_with_settings_that_were_given_as_tuples(tmp_path: Path) -> None:
    wanted = config(to="run")
    names = {"names": ("first", "second")}
    env = ("support.keyed_envs:EvenSeeds",)
    run = replace(wanted.run, env=env, policy="zero", env_config=names)
    assert collect(replace(wanted, run=run), tmp_path / "run").trials > 4


def test_a_dataset_that_exists_is_never_written_over(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        collect(config(), tmp_path / "data")
    assert not run_folder(tmp_path / "data", "lerobot").exists()


def test_a_task_that_never_succeeds_is_named_and_its_run_is_kept(tmp_path):
    never = config(2, most=4)
    never = CollectConfig(
        run=EvalConfig.from_plain(
            {**never.run.to_plain(), "env_config": {**TOY, "success_at": 100}}
        ),
        most=4,
    )
    with pytest.raises(TooFewError, match=r"toy:image/image has 0 of 2 .* after 4 trials.*--most"):
        collect(never, tmp_path / "data")
    assert run_folder(tmp_path / "data", "lerobot").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"to": "lerobt"}, "Did you mean 'lerobot'"),
        ({"to": "perfetto"}, "hocket export"),
        ({"most": 1}, "fewer trials"),
    ],
)
def test_what_cannot_be_collected_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        config(**wrong)


def test_the_command_collects_and_says_where(tmp_path, capsys):
    arguments = ["collect", "--env", "toy:image", "--policy", "scripted", "--episodes", "2"]
    arguments += ["--env.length-max", "9", "--env.length-min", "4", "--env.image-size", "24"]
    arguments += ["--failures", "--lanes", "2", "--to", "lerobot", str(tmp_path / "data")]
    assert cli.main(arguments) == cli.OK
    assert "2 episodes of 2 trials as lerobot" in capsys.readouterr().out
    assert cli.main(arguments) == cli.USAGE
    assert "exists already" in capsys.readouterr().err


def test_an_env_without_a_rate_is_refused_before_anything_is_collected(tmp_path: Path) -> None:
    run = EvalConfig(
        env=("support.keyed_envs:Untimed",), policy="random", episodes=1, lanes=1, video="none"
    )
    with pytest.raises(UsageError, match="--fps"):
        collect(CollectConfig(run=run), tmp_path / "data")
    assert not run_folder(tmp_path / "data", "lerobot").exists()
    collect(CollectConfig(run=run, export=ExportConfig(fps=4.0)), tmp_path / "data")
    assert json.loads((tmp_path / "data" / "meta" / "info.json").read_text())["fps"] == 4


def test_an_env_that_cannot_be_shown_again_has_its_pictures_kept(tmp_path: Path) -> None:
    run = EvalConfig.from_plain(
        {
            "env": ("support.filmed_env:Walk",),
            "policy": "random",
            "episodes": 1,
            "lanes": 1,
            "video": "none",
            "env_config": {"steps": 3},
        }
    )
    done = collect(CollectConfig(run=run, to="run", failures=True), tmp_path / "run")
    (film,) = done.run.rglob("*.lossless.m4v")
    assert len(list(read_pictures(film, 4))) == 4


def test_pictures_that_cannot_be_kept_are_refused_before_anything_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = EvalConfig(env=("support.filmed_env:Walk",), policy="random", lanes=1, video="none")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match="'av'"):
        collect(CollectConfig(run=run, failures=True), tmp_path / "data")
    assert not run_folder(tmp_path / "data", "lerobot").exists()


def test_envs_that_can_be_shown_again_keep_no_pictures_while_they_run(tmp_path: Path) -> None:
    done = collect(config(1, to="run", failures=True), tmp_path / "run")
    assert not list(done.run.rglob("*.m4v"))
