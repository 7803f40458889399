"""How a seed becomes a start is a named setting of a suite, which runs and cards tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import hocket
from hocket.adapters.envs.mjx import TASKS, Mjx, MjxConfig, MjxTask
from hocket.core.contracts import env as contract
from hocket.core.contracts.env import START_SCHEMES, TASK_AND_SEED, StartScheme, start_scheme
from hocket.errors import ConfigError, UnknownNameError, UsageError
from hocket.records.run_file import load_run
from hocket.results.card import Card
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.runs.assembly import Assembly
from hocket.runs.checks.card import check_card, config_for, write_card
from hocket.runs.config import EvalConfig
from support.recorded_runs import SUCCESS, plan, record_run

MJX: dict[str, Any] = {
    "env": "mjx:reach",
    "env_config": {"backend": "c", "threads": 1},
    "policy": "zero",
    "episodes": 2,
    "lanes": 1,
    "max_steps": 8,
    "video": "none",
}
SEED_ALONE = "seed-alone"


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second scheme, which is added in one place: the seed as it is."""
    alone = StartScheme(lambda _, seed: seed, is_independent=False)
    monkeypatch.setattr(contract, "START_SCHEMES", {**START_SCHEMES, SEED_ALONE: alone})


def first_angles(scheme: str) -> list[Any]:
    """The share of its range at which each task's first number starts, for many seeds."""
    suite = Mjx("all", MjxConfig(start_scheme=scheme))
    tasks: list[MjxTask] = [suite._task(name) for name in TASKS]
    reach, push = (task.start(range(2000)) for task in tasks)
    yaw = (reach[0][:, 0] + 1.0) / 2.0
    block = (np.arctan2(push[0][:, 4], push[0][:, 3]) + 0.8) / 1.6
    return [yaw, block]


@pytest.mark.usefixtures("another")
def test_tasks_start_at_one_quantile_by_the_seed_alone_and_apart_by_task_and_seed() -> None:
    assert np.corrcoef(*first_angles(SEED_ALONE))[0, 1] == pytest.approx(1.0)
    assert abs(np.corrcoef(*first_angles(TASK_AND_SEED))[0, 1]) < 0.1


def test_a_start_is_keyed_by_task_and_seed_alone() -> None:
    seed_of = start_scheme(TASK_AND_SEED).seed
    assert seed_of("reach", 7) == seed_of("reach", 7)
    assert len({seed_of(task, seed) for task in "ab" for seed in range(50)}) == 100
    assert all(0 <= seed_of("reach", seed) < 2**63 for seed in range(100))


def test_an_unknown_scheme_is_refused_before_anything_starts() -> None:
    config = EvalConfig(env=("mjx:reach",), policy="zero", env_config={"start_scheme": "1"})
    with pytest.raises(UnknownNameError, match=r"no start scheme '1'.* one of: task-and-seed"):
        Assembly(config)
    for plain in ({**MJX, "seed_scheme": 2}, {**MJX, "seed_scheme": 1}):
        with pytest.raises(ConfigError, match="no setting 'seed_scheme'"):
            EvalConfig.from_plain(plain)


def test_a_run_and_its_card_name_the_scheme_of_each_suite_that_draws(tmp_path: Path) -> None:
    hocket.evaluate(**MJX, out=tmp_path / "a")
    about = yaml.safe_load((tmp_path / "a" / "run.yaml").read_text())["about"]
    assert about["settings"]["mjx:reach"]["start_scheme"] == TASK_AND_SEED
    assert "start_scheme" not in load_run(tmp_path / "a")["env_config"]
    write_card(tmp_path / "a", tmp_path / "card")
    card = Card.load(tmp_path / "card" / "card.json")
    assert card.report.provenance["settings"]["mjx:reach"]["start_scheme"] == TASK_AND_SEED


@pytest.mark.usefixtures("another")
def test_a_card_is_checked_by_its_own_scheme(tmp_path: Path) -> None:
    hocket.evaluate(**MJX, out=tmp_path / "a")
    write_card(tmp_path / "a", tmp_path / "card")
    card = Card.load(tmp_path / "card" / "card.json")
    assert config_for(card, EvalConfig.from_plain(MJX)).env_config["start_scheme"] == TASK_AND_SEED
    mine = {**MJX["env_config"], "start_scheme": SEED_ALONE}
    asked = config_for(card, EvalConfig.from_plain({**MJX, "env_config": mine}))
    assert asked.env_config["start_scheme"] == SEED_ALONE
    with pytest.raises(UsageError, match=r"cannot be paired.* start_scheme is seed-alone in a"):
        check_card(card, asked, sample=1)


def side(tmp_path: Path, name: str, **config: Any) -> Side:
    return Side.open(
        record_run(tmp_path / name, plan(["push"], 4), lambda _: SUCCESS, config=config)
    )


@pytest.mark.usefixtures("another")
def test_compare_refuses_mixed_schemes_and_takes_the_default_for_what_is_spelled_out(
    tmp_path: Path,
) -> None:
    env = ["metaworld:push"]
    unsaid = side(tmp_path, "unsaid", env=env)
    other = side(tmp_path, "other", env=env, env_config={"start_scheme": SEED_ALONE})
    with pytest.raises(UsageError, match=r"start_scheme is task-and-seed in a, seed-alone in b"):
        compare_runs(unsaid, other)
    same = side(tmp_path, "same", env=env, env_config={"start_scheme": TASK_AND_SEED})
    assert compare_runs(unsaid, same).comparison.overall.n == 4


@pytest.mark.usefixtures("another")
@pytest.mark.parametrize(
    ("env", "scheme", "independent"),
    [
        (("metaworld:mt10",), TASK_AND_SEED, True),
        (("metaworld:mt10",), SEED_ALONE, False),
        (("mjx:all", "metaworld:reach"), TASK_AND_SEED, True),
        (("metaworld:mt10", "metaworld:reach"), TASK_AND_SEED, False),  # one start, twice
        (("metaworld:mt10", "toy:count"), TASK_AND_SEED, False),
    ],
)
def test_starts_are_independent_where_every_suite_says_so(
    env: tuple[str, ...], scheme: str, *, independent: bool
) -> None:
    config = EvalConfig(env=env, policy="zero", env_config={"start_scheme": scheme})
    assert Assembly(config).has_independent_starts() is independent
