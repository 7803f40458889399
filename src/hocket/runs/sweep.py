"""Several delays on the same trials: a run for each, and one report of what latency costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket.core.contracts.recorder import Reader
from hocket.engine.delays import sweep
from hocket.errors import RunFolderError
from hocket.records.step_rows import load_steps
from hocket.results.delays import DelayReport, job_name
from hocket.results.motion import Motion, motion_of
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.elsewhere import Elsewhere
from hocket.runs.jobs import Job, JobResult, run_jobs
from hocket.runs.rollout import fixed_delay


def sweep_jobs(plain: Mapping[str, Any]) -> list[Job]:
    """A run for each delay that a configuration names, with everything else the same."""
    jobs = []
    for delay in sweep(str(plain["delay"])):
        asked = EvalConfig.from_plain({**plain, "delay": delay})
        config = fixed_delay(asked, Assembly(asked, asked.lanes))
        jobs.append(Job(name=job_name(str(config.delay)), config=config))
    return jobs


def run_sweep(
    jobs: Sequence[Job],
    folder: Path,
    *,
    reader: Callable[[Job], Reader],
    elsewhere: Elsewhere | None = None,
) -> tuple[list[JobResult], DelayReport]:
    """Make every run that is not finished, and report what all of them say of delay."""
    results = run_jobs(jobs, folder, reader=reader, elsewhere=elsewhere)
    reports = {str(r.job.config.delay): r.report for r in results if r.report is not None}
    motions: dict[str, Motion] = {}
    for result in results:
        if result.report is not None and result.job.config.record != "none":
            try:
                found = load_steps(folder / result.job.name)
            except RunFolderError:
                continue
            motions[str(result.job.config.delay)] = motion_of(found)
    config = jobs[0].config
    rates = {
        (suite, info.name): info.control_rate
        for suite, infos in Assembly(config, config.lanes).tasks().items()
        for info in infos
    }
    report = DelayReport.build(config.method, reports, motions, rates)
    report.save(folder)
    return results, report
