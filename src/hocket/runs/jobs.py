"""Many runs from one file: checkpoints times suites, one warm fleet, one folder for each.

    shared:                      # settings of every run
      episodes: 50
      policy: reference
    runs:
      push: {env: metaworld:push-v3}
      reach: {env: metaworld:reach-v3, seed: 100}

A run that cannot be made does not stop the others. The same command again goes on where the last
one stopped: finished runs stay, an unfinished one is resumed with its own seed scheme, and one that
failed is tried again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.core.contracts.recorder import Reader
from hocket.errors import ConfigError, HocketError
from hocket.records import run_file as run_config
from hocket.records.folder import RunFolder
from hocket.results.factors import CLEAN
from hocket.results.page.report_page import write_jobs_page
from hocket.results.report import Report
from hocket.results.scores import named_table
from hocket.results.tables import ResultTable
from hocket.runs.config import EvalConfig
from hocket.runs.elsewhere import Elsewhere
from hocket.runs.run import Run
from hocket.workers.env.factors import split_arms
from hocket.workers.fleet import Fleets

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to be made."""

    name: str
    config: EvalConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What became of a job: its report, or why there is none."""

    job: Job
    report: Report | None
    error: str | None = None


def load_jobs(path: Path) -> list[Job]:
    """The jobs in a file, every one of them checked before any is run."""
    plain = run_config.load_run(path)
    unknown = sorted(set(plain) - {"shared", "runs"})
    if unknown:
        raise ConfigError(f"{path} has a section {unknown[0]!r}; it may have 'shared' and 'runs'.")
    shared, runs = plain.get("shared") or {}, plain.get("runs")
    if not isinstance(shared, dict) or not isinstance(runs, dict) or not runs:
        raise ConfigError(f"{path} needs 'runs', a mapping of names to settings.")
    jobs = []
    for name, settings in runs.items():
        if not _NAME.fullmatch(str(name)):
            raise ConfigError(f"{name!r} cannot be a run's name: it names its folder too.")
        if not isinstance(settings or {}, dict):
            raise ConfigError(f"{path}: the run {name!r} must be settings, not {settings!r}.")
        try:
            config = EvalConfig.from_plain(_merged(shared, settings or {}))
        except HocketError as error:
            raise ConfigError(f"Run {name!r} of {path}: {error}") from error
        jobs.append(Job(name=str(name), config=config))
    return jobs


def arms_of(config: EvalConfig, text: str) -> dict[str, Job]:
    """A job for each arm that a text names, by what it disturbs; the clean one is first."""
    jobs = {"": Job(name=CLEAN, config=dataclasses.replace(config, perturb=""))}
    for arm in split_arms(text):
        name = re.sub(r"[^\w.-]+", "-", arm).strip("-")
        jobs[arm] = Job(name=name, config=dataclasses.replace(config, perturb=arm))
    return jobs


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    *,
    reader: Callable[[Job], Reader],
    elsewhere: Elsewhere | None = None,
) -> list[JobResult]:
    """Make every run that is not finished, each in its folder below `folder`, here or on other
    machines. Stops only when it
    is interrupted; jobs that were not begun then have neither report nor error."""
    results: list[JobResult] = []
    with Fleets() as fleets:
        for job in jobs:
            result = _run_job(job, folder / job.name, fleets, reader, elsewhere)
            results.append(result)
            if result.report is not None and not result.report.complete:
                break
    left = [JobResult(job=job, report=None) for job in jobs[len(results) :]]
    write_jobs_page(folder, [(result.job.name, result.report, result.error) for result in results])
    return results + left


def summary(results: Sequence[JobResult]) -> ResultTable:
    """One line for each run that has a report."""
    scores = {r.job.name: r.report.overall for r in results if r.report is not None}
    return named_table(scores, heading="run")


def _run_job(
    job: Job,
    folder: Path,
    fleets: Fleets,
    reader: Callable[[Job], Reader],
    elsewhere: Elsewhere | None,
) -> JobResult:
    try:
        if RunFolder.at(folder).ledger.exists():
            run = Run.open(folder)
            _refuse_changed(job, run.config, folder)
        else:
            run = Run.new(job.config, folder)
        with run:
            follower = reader(job)
            try:
                report = run.finish(readers=[follower], fleets=fleets, elsewhere=elsewhere)
            finally:
                follower.close()
    except HocketError as error:
        return JobResult(job=job, report=None, error=f"{type(error).__name__}: {error}")
    return JobResult(job=job, report=report)


def _refuse_changed(job: Job, found: EvalConfig, folder: Path) -> None:
    for field in dataclasses.fields(EvalConfig):
        ours, theirs = getattr(job.config, field.name), getattr(found, field.name)
        if ours != theirs:
            raise ConfigError(
                f"{folder} holds a run with another {field.name}: {theirs!r}, now {ours!r}. Give "
                f"the run another name, or remove the folder."
            )


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A run's own settings over the shared ones; those of adapters are merged key by key."""
    merged = {**shared, **own}
    for key in ("env_config", "policy_config"):
        if isinstance(shared.get(key), dict) and isinstance(own.get(key), dict):
            merged[key] = {**shared[key], **own[key]}
    return merged
