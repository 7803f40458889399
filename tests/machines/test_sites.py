"""Whole runs on several sites, each a thread with an engine of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.core.data import Actions, Batch, Outcome
from hocket.core.specs import PolicySpec
from hocket.errors import ConfigError, EnvError, RunFolderError, UsageError
from hocket.exports.collect import CollectConfig, collect
from hocket.machines.machines import Machines
from hocket.records.chunks import load_chunks
from hocket.records.evidence import kept_evidence
from hocket.records.ledger.view import LedgerView
from hocket.records.run_file import load_about
from hocket.results.showing.progress import ProgressDisplay
from hocket.results.timing import load_timing
from hocket.runs.arms import Jobs
from hocket.runs.evaluation import run_jobs
from hocket.runs.run import Run
from hocket.runs.sites import MachinesConfig, SiteConfig
from support.sites import ThreadSites, assert_same, attempts, machines, run_here, run_on, toys


def test_trials_have_the_same_results_here_and_on_three_sites(tmp_path: Path) -> None:
    config = toys(env=("toy:count", "toy:plain"))
    run_here(config, tmp_path / "here")
    report = run_on(config, tmp_path / "there", ThreadSites(3))
    assert_same(tmp_path / "here", tmp_path / "there")
    assert report.complete
    assert report.exactness == "bitwise"
    about = load_about(tmp_path / "there")
    assert sorted(site["first_lane"] for site in about["sites"]) == [0, 1, 2]
    # What results depend on is told as of a run here.
    here = load_about(tmp_path / "here")
    for part in ("code", "hardware", "settings", "chunks", "versions"):
        assert about[part] == here[part]
    assert report.provenance["settings"] == here["settings"]


def test_chunks_of_all_sites_lie_in_one_table(tmp_path: Path) -> None:
    run_on(toys(episodes=9), tmp_path / "run", ThreadSites(3))
    chunks = load_chunks(tmp_path / "run").to_pydict()
    assert len(set(zip(chunks["trial"], chunks["chunk"], strict=True))) == len(chunks["trial"])
    lanes_of = {batch: set() for batch in chunks["batch"]}
    for batch, lane in zip(chunks["batch"], chunks["lane"], strict=True):
        lanes_of[batch].add(lane)
    assert all(len(lanes) == 1 for lanes in lanes_of.values()), "Batches of two sites were mixed."
    timing = load_timing(tmp_path / "run")
    assert timing is not None
    assert timing.lanes == len(set(chunks["lane"]))
    assert "thread-0: 1 lanes" in (tmp_path / "run" / "report.html").read_text()


def test_an_attempt_that_fails_is_retried_by_the_driver(tmp_path: Path) -> None:
    once = {"raise_at": 5, "fault_seed": 2, "once_file": str(tmp_path / "once")}
    report = run_on(toys(env_config=once), tmp_path / "run", ThreadSites(2))
    assert report.overall.errors == 0
    assert [error for *_, error in attempts(tmp_path / "run") if error]


def test_an_env_that_ignores_its_seed_is_found_at_a_site(tmp_path: Path) -> None:
    config = toys(env=("support.seeding_env:make",), env_config={"way": "unseeded"})
    report = run_on(config, tmp_path / "run", ThreadSites(1))
    assert report.claim.unseeded == ("support.seeding_env:make",)


def test_what_a_failed_attempt_left_is_kept_as_on_one_machine(tmp_path: Path) -> None:
    config = toys(env_config={"raise_at": 5, "fault_seed": 2}, retries=1)
    run_here(config, tmp_path / "here")
    run_on(config, tmp_path / "there", ThreadSites(2))
    kept = {}
    for name in ("here", "there"):
        with LedgerView.open(tmp_path / name) as ledger:
            found = kept_evidence(ledger)
        # A lease that was asked back before it began has used its number up.
        kept[name] = [(one.trial, [Path(file).name for file in one.files]) for one in found]
    assert kept["there"] == kept["here"] != []


def test_a_trial_that_always_fails_ends_as_an_error_with_its_retries_spent(tmp_path: Path) -> None:
    config = toys(env_config={"raise_at": 5, "fault_seed": 2}, retries=1)
    report = run_on(config, tmp_path / "run", ThreadSites(2))
    (failed,) = [e for e in report.episodes if e.outcome is Outcome.ERROR]
    assert failed.trial.seed == 2
    assert "ToyError" in (failed.error or "")
    with LedgerView.open(tmp_path / "run") as ledger:
        assert len([f for f in ledger.failures() if f.trial.seed == 2]) == 2


def test_a_full_disk_at_a_site_stops_the_run_in_words(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="No space is left for 'x'"):
        run_on(toys(env=("support.full_disk:FullAt2",)), tmp_path / "run", ThreadSites(1))


def test_an_env_that_cannot_be_built_stops_the_run_in_words(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="cannot be built"):
        run_on(toys(env_config={"raise_in_init": True}), tmp_path / "run", ThreadSites(2))
    assert not (tmp_path / "run").exists()


def test_jobs_keep_their_sites(tmp_path: Path) -> None:
    jobs = Jobs(runs={name: toys(seed=seed, episodes=3) for name, seed in (("a", 0), ("b", 9))})
    launcher = ThreadSites(2)
    config = MachinesConfig(where="local:1", site=SiteConfig())
    with Machines(config, more=True, launcher=launcher) as elsewhere:
        table = run_jobs(
            jobs, tmp_path, readers=lambda _: [ProgressDisplay(quiet=True)], elsewhere=elsewhere
        )
    assert [arm.error for arm in table.arms] == [None, None]
    assert len(launcher.sites) == 2
    run_here(jobs.runs["b"], tmp_path / "here")
    assert_same(tmp_path / "here", tmp_path / "b")


def test_a_collection_plans_more_trials_and_keeps_its_sites(tmp_path: Path) -> None:
    config = CollectConfig(run=toys(episodes=3), to="run")
    where = MachinesConfig(where="local:1", site=SiteConfig())
    launcher = ThreadSites(2)
    with Machines(where, more=True, launcher=launcher) as elsewhere:
        done = collect(config, tmp_path / "run", elsewhere=elsewhere)
    assert done.is_complete
    assert done.episodes == 3
    assert len(launcher.sites) == 2
    collect(config, tmp_path / "here")
    assert_same(tmp_path / "here", tmp_path / "run")


class Chooses:
    """Wins one trial in ten, or nine."""

    spec = PolicySpec(chunk_length=4, batch_invariant=True)
    share = 1

    def infer(self, batch: Batch) -> Actions:
        wins = [row.trial.seed % 10 < self.share for row in batch.rows]
        return Actions(np.repeat(np.array(wins, float)[:, None, None], 4, axis=1))

    def close(self) -> None: ...


class ChoosesBetter(Chooses):
    share = 9


@pytest.mark.slow
def test_a_run_on_sites_stops_when_its_comparison_is_decided(tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    asked: dict[str, Any] = {
        "env": ("support.deciding_env:make",),
        "env_config": {"folder": str(tmp_path / "built")},
        "episodes": 120,
    }
    run_here(toys(policy="machines.test_sites:Chooses", **asked), tmp_path / "a")
    config = toys(
        policy="machines.test_sites:ChoosesBetter",
        until="decided",
        against=str(tmp_path / "a"),
        **asked,
    )
    report = run_on(config, tmp_path / "b", ThreadSites(2))
    assert report.complete
    assert report.decision is not None
    assert report.decision.look.decision == "a better"
    assert report.decision.look.pairs < 60
    assert report.planned < 120


def test_a_run_without_a_folder_is_refused() -> None:
    with (
        machines(ThreadSites(1)) as elsewhere,
        Run.new(toys(), None) as run,
        pytest.raises(UsageError, match="run folder"),
    ):
        run.finish(elsewhere=elsewhere)


@pytest.mark.parametrize("where", ["local", "local:x", "cloud", "listen:nowhere"])
def test_machines_that_do_not_exist_are_refused(where: str) -> None:
    with pytest.raises(UsageError, match="machines"):
        Machines(MachinesConfig(where=where, site=SiteConfig()))


def test_numbers_of_sites_and_what_they_ask_for_are_checked() -> None:
    for words, fields in (
        ("--sites is 0", {"where": "ray", "sites": 0}),
        ("as many as that names", {"where": "local:2", "sites": 3}),
    ):
        with pytest.raises(ConfigError, match=words):
            MachinesConfig(site=SiteConfig(), **fields)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a part of 1"):
        SiteConfig(gpus=1.5)
