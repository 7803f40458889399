"""Runs over connections that live for less than what one episode has to send."""

from __future__ import annotations

import os
import random
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket.runs.run import Run
from support.fault_proxy import FaultProxy
from support.sites import ThreadSites, assert_same, attempts, machines, run_here, toys


def run_over_cuts(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lives: tuple[int, int],
    **settings: object,
) -> int:
    """A run on two sites that send their files over connections which are cut after a random number
    of bytes within `lives`; gives how many were cut."""
    seed = int(os.environ.get("HOCKET_FAULT_SEED", secrets.randbits(32)))
    with capsys.disabled():
        sys.stdout.write(f" (seed {seed}: ")  # before anything that may not end
    draw, proxies = random.Random(seed), []

    def through_a_proxy(url: str) -> str:
        proxies.append(FaultProxy(int(url.rpartition(":")[2])))
        proxies[-1].lives = lambda: draw.randint(*lives)
        return f"ws://127.0.0.1:{proxies[-1].port}"

    config = toys(retries=0, **settings)
    try:
        elsewhere = machines(ThreadSites(2, through_a_proxy))
        with elsewhere, Run.new(config, folder / "there") as run:
            assert run.finish(elsewhere=elsewhere).complete
    finally:
        cuts, made = sum(p.cuts for p in proxies), sum(p.accepted for p in proxies)
        with capsys.disabled():
            sys.stdout.write(f"{cuts} cuts of {made} connections) ")
        for proxy in proxies:
            proxy.__exit__()
    run_here(config, folder / "here")
    assert_same(folder / "here", folder / "there")
    assert not [error for *_, error in attempts(folder / "there") if error]
    return cuts


HARD = (8_000, 24_000)
RECORDED: dict[str, Any] = {"env_config": {"length_min": 180, "length_max": 180}, "record": "full"}
"""Episodes of 180 recorded steps."""


def test_episodes_come_over_connections_that_are_shorter_than_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_over_cuts(tmp_path, monkeypatch, capsys, HARD, episodes=6, **RECORDED) > 6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_of_120_episodes_come_over_connections_that_are_cut_after_8_to_24_kB(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_over_cuts(tmp_path, monkeypatch, capsys, HARD, episodes=120, **RECORDED) > 120


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_of_120_episodes_come_over_connections_that_are_cut_after_20_to_700_kB(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env = ("support.heavy_env:make",)
    settings = {"episodes": 120, "env": env, "record": "full"}
    cuts = run_over_cuts(tmp_path, monkeypatch, capsys, (20_000, 700_000), **settings)
    assert cuts > 120
