"""How a seed becomes a start is the run's to say, and stays what it was in every run folder."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import hocket
from hocket.adapters.envs.mjx import TASKS, Mjx, MjxConfig, MjxTask
from hocket.core import plugins
from hocket.core.contracts.env import SeedScheme, start_seed
from hocket.errors import ConfigError, UsageError
from hocket.records.ledger.view import LedgerView
from hocket.records.run_file import load_run
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.runs.assembly import Assembly
from hocket.runs.checks.verify import verify
from hocket.runs.collect import CollectConfig, collect
from hocket.runs.config import EvalConfig
from hocket.runs.jobs import load_jobs, run_jobs
from hocket.runs.run import Run
from support.recorded_runs import FAILURE, SUCCESS, plan, record_run

MJX: dict[str, Any] = {
    "env": "mjx:reach",
    "env_config": {"backend": "c", "threads": 1},
    "policy": "zero",
    "episodes": 2,
    "lanes": 1,
    "max_steps": 8,
    "video": "none",
}


def forget_scheme(folder: Path) -> None:
    """Make a folder as it was written before there were schemes."""
    with LedgerView.open(folder) as ledger:
        config = ledger.meta()["config"]
    del config["seed_scheme"]
    with sqlite3.connect(folder / "ledger.sqlite") as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'config'", (json.dumps(config),))
    connection.close()
    run_file = yaml.safe_load((folder / "run.yaml").read_text())
    del run_file["seed_scheme"]
    (folder / "run.yaml").write_text(yaml.safe_dump(run_file))


def first_angles(scheme: SeedScheme) -> list[Any]:
    """The share of its range at which each task's first number starts, for many seeds."""
    suite = Mjx("all", MjxConfig(seed_scheme=scheme))
    tasks: list[MjxTask] = [suite._task(name) for name in TASKS]
    reach, push = (task.start(range(2000)) for task in tasks)
    yaw = (reach[0][:, 0] + 1.0) / 2.0
    block = (np.arctan2(push[0][:, 4], push[0][:, 3]) + 0.8) / 1.6
    return [yaw, block]


def test_tasks_start_at_one_quantile_under_the_first_scheme_and_apart_under_the_second() -> None:
    assert np.corrcoef(*first_angles(1))[0, 1] == pytest.approx(1.0)
    assert abs(np.corrcoef(*first_angles(2))[0, 1]) < 0.1


def test_a_start_is_keyed_by_task_and_seed_alone() -> None:
    assert start_seed("reach", 7, 1) == 7
    assert start_seed("reach", 7, 2) == start_seed("reach", 7, 2)
    assert len({start_seed(task, seed, 2) for task in "ab" for seed in range(50)}) == 100
    assert all(0 <= start_seed("reach", seed, 2) < 2**63 for seed in range(100))


def test_a_new_run_names_the_second_scheme_and_gives_it_to_its_workers(tmp_path: Path) -> None:
    hocket.evaluate(**MJX, out=tmp_path / "a")
    assert yaml.safe_load((tmp_path / "a" / "run.yaml").read_text())["seed_scheme"] == 2
    config = EvalConfig.from_plain({**MJX, "seed_scheme": 1})
    assert Assembly(config).worker().to_plain()["suites"]["mjx:reach"]["config"]["seed_scheme"] == 1
    assert (
        "seed_scheme" not in Assembly(EvalConfig(env=("toy",), policy="zero")).suites["toy"].config
    )


def test_a_folder_that_names_no_scheme_is_replayed_and_resumed_by_the_first(tmp_path: Path) -> None:
    hocket.evaluate(**MJX, out=tmp_path / "old", seed_scheme=1)
    forget_scheme(tmp_path / "old")
    assert verify(tmp_path / "old", "reach/1").difference is None
    with Run.open(tmp_path / "old") as run:
        assert run.assembly.suites["mjx:reach"].config["seed_scheme"] == 1
    assert load_run(tmp_path / "old")["seed_scheme"] == 1
    hocket.evaluate(**MJX, out=tmp_path / "new")
    assert verify(tmp_path / "new", "reach/1").difference is None


def test_a_configuration_that_a_person_wrote_means_the_newest_scheme(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("env: mjx:reach\npolicy: zero\n")
    assert EvalConfig.from_plain(load_run(tmp_path / "mine.yaml")).seed_scheme == 2


def test_resumed_jobs_and_collections_keep_the_scheme_of_their_folder(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text(yaml.safe_dump({"runs": {"a": {**MJX, "seed_scheme": 1}}}))
    run_jobs(load_jobs(jobs), tmp_path / "out", reader=lambda _: Silent())
    jobs.write_text(yaml.safe_dump({"runs": {"a": MJX}}))
    (again,) = run_jobs(load_jobs(jobs), tmp_path / "out", reader=lambda _: Silent())
    assert again.error is None
    asked = CollectConfig(run=EvalConfig.from_plain(MJX), to="run", failures=True)
    done = collect(asked, tmp_path / "out" / "a")
    assert (done.is_complete, done.trials) == (True, 2)
    made = EvalConfig.from_plain({**MJX, "seed_scheme": 2})
    hocket.evaluate(**MJX, out=tmp_path / "two")
    with Run.open(tmp_path / "two") as two:
        assert made.going_on(two.config) == made
        older = EvalConfig.from_plain({**MJX, "seed_scheme": 1})
        assert older.going_on(two.config).seed_scheme == 1


class Silent:
    def on(self, event: object) -> None: ...

    def close(self) -> None: ...


def side(tmp_path: Path, name: str, **config: Any) -> Side:
    return Side.open(
        record_run(tmp_path / name, plan(["push"], 4), lambda _: SUCCESS, config=config)
    )


def test_compare_refuses_mixed_schemes_with_the_flag_to_use(tmp_path: Path) -> None:
    old = side(tmp_path, "old", env=["metaworld:push"])
    new = side(tmp_path, "new", env=["metaworld:push"], seed_scheme=2)
    with pytest.raises(UsageError, match=r"seed_scheme is 1 in a, 2 in b .*--seed-scheme 1"):
        compare_runs(old, new)
    paired = side(tmp_path, "paired", env=["metaworld:push"], seed_scheme=1)
    assert compare_runs(old, paired).comparison.overall.n == 4


def test_schemes_do_not_matter_to_envs_that_draw_by_none(tmp_path: Path) -> None:
    old, new = side(tmp_path, "old"), side(tmp_path, "new", seed_scheme=2)
    assert compare_runs(old, new).comparison.overall.n == 4
    own = side(tmp_path, "own", env=["mine:Env"], seed_scheme=2)
    with pytest.raises(UsageError, match="--seed-scheme 1"):
        compare_runs(own, side(tmp_path, "earlier", env=["mine:Env"]))


def test_until_decided_refuses_mixed_schemes_with_the_flag_to_use(tmp_path: Path) -> None:
    trials = plan(["reach"], 2, suite="mjx:reach")
    settings = {key: MJX[key] for key in ("env_config", "max_steps")}
    record_run(
        tmp_path / "old", trials, lambda _: FAILURE, config={"env": ["mjx:reach"], **settings}
    )
    asked = {**MJX, "until": "decided", "against": str(tmp_path / "old")}
    with pytest.raises(UsageError, match=r"seed_scheme is 1 in a, 2 in b .*--seed-scheme 1"):
        hocket.evaluate(**asked)
    assert hocket.evaluate(**asked, seed_scheme=1).complete


def test_the_scheme_is_no_setting_of_one_env() -> None:
    with pytest.raises(ConfigError, match="--seed-scheme"):
        EvalConfig(env=("mjx:reach",), policy="zero", env_config={"seed_scheme": 1})
    assert plugins.has_setting("envs", "metaworld:mt10", "seed_scheme")
    assert not plugins.has_setting("envs", "libero:spatial", "seed_scheme")


@pytest.mark.parametrize(
    ("env", "scheme", "independent"),
    [
        (("metaworld:mt10",), 2, True),
        (("metaworld:mt10",), 1, False),
        (("mjx:all", "metaworld:reach"), 2, True),
        (("metaworld:mt10", "metaworld:reach"), 2, False),  # one task, one start, twice
        (("metaworld:mt10", "toy:count"), 2, False),
    ],
)
def test_starts_are_independent_where_every_suite_says_so(
    env: tuple[str, ...], scheme: SeedScheme, *, independent: bool
) -> None:
    config = EvalConfig(env=env, policy="zero", seed_scheme=scheme)
    assert Assembly(config).has_independent_starts() is independent
