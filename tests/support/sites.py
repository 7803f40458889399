"""Runs on several sites without processes: each site is a thread with an engine of one lane."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hocket.errors import HocketError
from hocket.machines.credentials import Credentials
from hocket.machines.machines import Machines
from hocket.machines.site.link import DriverLink
from hocket.machines.site.site import Site
from hocket.machines.site.site_work import MakeWork
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import load_steps
from hocket.results.report import Report
from hocket.runs.config import EvalConfig
from hocket.runs.run import Run
from hocket.runs.sites import MachinesConfig, SiteConfig
from support.processes import DEADLINE_S

Wrap = Callable[[str], str]


class ThreadSites:
    """A launcher whose sites are threads of this process."""

    outlives = False

    def __init__(
        self, count: int, url: Wrap = lambda url: url, kinds: Mapping[str, MakeWork] | None = None
    ) -> None:
        """`url` may lead sites elsewhere than straight to the driver."""
        self._kinds = kinds
        self._count = count
        self._url = url
        self.wait_s = DEADLINE_S
        self.sites: list[Site] = []
        self.errors: list[HocketError] = []
        self._threads: list[threading.Thread] = []

    def start(self, port: int, credentials: str) -> None:
        for _ in range(self._count - len(self._threads)):
            self.add(port, credentials)

    def add(self, port: int, credentials: str) -> None:
        site = Site(f"thread-{len(self.sites)}", self._kinds)
        url = self._url(f"ws://127.0.0.1:{port}")
        link = DriverLink(url, Credentials.parse(credentials, "the test"), site, wait_s=self.wait_s)

        def work() -> None:
            try:
                site.work(link)
            except HocketError as error:
                self.errors.append(error)

        self.sites.append(site)
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def poll(self) -> list[tuple[str, str]]:
        return []

    def is_hopeless(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        for site in self.sites:
            site.leave()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def toys(**settings: Any) -> EvalConfig:
    plain: dict[str, Any] = {
        "env": ("toy:count",),
        "policy": "random",
        "episodes": 6,
        "lanes": 1,
        "video": "none",
    }
    return EvalConfig.from_plain({**plain, **settings})


def machines(launcher: Any, **site: Any) -> Machines:
    config = MachinesConfig(where="local:1", site=SiteConfig(**site))
    return Machines(config, launcher=launcher)


def run_on(config: EvalConfig, folder: Path, launcher: Any, **site: Any) -> Report:
    with machines(launcher, **site) as elsewhere, Run.new(config, folder) as run:
        return run.finish(elsewhere=elsewhere)


def run_here(config: EvalConfig, folder: Path) -> Report:
    with Run.new(config, folder) as run:
        return run.finish()


def outcomes(folder: Path) -> list[tuple[Any, ...]]:
    """What became of each trial, without what depends on time or on the number of attempts."""
    with LedgerView.open(folder) as ledger:
        episodes = ledger.episodes()
    return [(e.trial, e.outcome, e.steps, e.total_reward, *e[5:8]) for e in episodes]


def steps(folder: Path) -> pa.Table:
    """Every step of every trial, in order, without the numbers of attempts."""
    table = load_steps(folder).drop_columns(["attempt"])
    return table.sort_by([("trial", "ascending"), ("step", "ascending")]).combine_chunks()


def files(folder: Path) -> dict[tuple[str, str], bytes]:
    """The files of all episodes by trial and name."""
    with LedgerView.open(folder) as ledger:
        found = [(e.trial.id, folder / name) for e in ledger.episodes() for name in e.files]
    return {(trial, path.name): path.read_bytes() for trial, path in found}


def assert_same(ours: Path, theirs: Path) -> None:
    """Fail unless both runs have the same trials with the same results, to the bit."""
    assert outcomes(ours) == outcomes(theirs)
    assert steps(ours).equals(steps(theirs))
    assert files(ours) == files(theirs)


def attempts(folder: Path) -> Sequence[tuple[int, int, str | None]]:
    """All attempts: trial, number, error."""
    with LedgerView.open(folder) as ledger:
        return ledger._rows("SELECT trial, attempt, error FROM attempts")  # type: ignore[return-value]
