"""Sites behind a real sshd on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hocket.machines.machines import Machines
from hocket.runs.run import Run
from hocket.runs.sites import MachinesConfig, SiteConfig
from support.sites import assert_same, run_here, toys
from support.sshd import running_sshd

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.slow
def test_trials_have_the_same_results_on_two_hosts(tmp_path: Path) -> None:
    config = toys(episodes=20, env_config={"step_s": 0.01})
    # A login has an environment of its own.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={SOURCE} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "sshd").mkdir()
    with running_sshd(tmp_path / "sshd") as server:
        site = SiteConfig(python=str(python), options=server.options(), folder=str(tmp_path))
        where = MachinesConfig(where=f"ssh:{server.hosts('127.0.0.1,localhost')}", site=site)
        with Machines(where) as machines, Run.new(config, tmp_path / "there") as run:
            report = run.finish(elsewhere=machines)
    assert report.complete
    run_here(config, tmp_path / "here")
    assert_same(tmp_path / "here", tmp_path / "there")
