"""Several delays on the same trials, in one report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from hocket.cli import compare, train
from hocket.cli import eval as verb
from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import UsageError
from hocket.records.step_rows import schema
from hocket.results.delays import DelayReport
from hocket.results.motion import motion_of
from hocket.results.report import Report, Throughput

TOY = ["--env", "toy:count", "--policy", "support.delayed:Waves", "--lanes", "1"]


def test_sweep_makes_a_run_for_each_delay_and_one_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    flags = ["--episodes", "3", "--delay", "0,2,1..4", "--method", "naive", "--video", "none"]
    assert verb.run([*TOY, *flags, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "McNemar" in shown
    report = json.loads((out / "delays.json").read_text())
    assert [point["delay"] for point in report["points"]] == ["0", "2", "1..4"]
    assert [point["success"]["n"] for point in report["points"]] == [3, 3, 3]
    ages = [point["motion"]["oldest"] for point in report["points"]]
    assert ages == [4, 6, 8]  # d + s - 1, with decisions every 5 steps
    # The toy runs at 20 steps a second, and only its last step succeeds.
    episodes = Report.load(out / "delay-2").episodes
    won = [e.steps / 20 for e in episodes if e.outcome is Outcome.SUCCESS]
    assert report["points"][1]["robot_s"]["value"] == pytest.approx(np.mean(won))
    assert "delay 2" in (out / "delays.html").read_text()
    assert verb.run([*TOY, *flags, "--out", str(out)]) == 0  # finished runs stay
    capsys.readouterr()
    assert compare.run([str(out / "delay-0"), str(out / "delay-2")]) == 0
    assert "(support.delayed:Waves --delay 2 --method naive)" in capsys.readouterr().out


def test_measured_delay_is_fixed_in_the_run_file(tmp_path: Path) -> None:
    flags = ["--episodes", "1", "--delay", "measured", "--method", "naive", "--record", "none"]
    assert verb.run([*TOY, *flags, "--video", "none", "--out", str(tmp_path / "run")]) == 0
    saved = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())
    assert saved["delay"].endswith("ms")
    assert float(saved["delay"][:-2]) >= 0


def test_training_refuses_a_delay_in_words() -> None:
    with pytest.raises(UsageError, match="no --delay"):
        train.run(["--env", "toy:count", "--policy", "actor", "--delay", "3"])


def _report(wins: list[bool]) -> Report:
    trials = [Trial("s", "t", seed) for seed in range(len(wins))]
    outcomes = [Outcome.SUCCESS if won else Outcome.FAILURE for won in wins]
    episodes = [Episode(t, 0, o, 40, 1.0) for t, o in zip(trials, outcomes, strict=True)]
    config: dict[str, Any] = {"env": ["s"], "policy": "p"}
    return Report.build(
        config=config,
        exactness="inputs",
        trials=trials,
        episodes=episodes,
        throughput=Throughput(),
    )


def test_largest_delay_without_a_significant_loss_is_told() -> None:
    reports = {
        "0": _report([True] * 40),
        "2": _report([True] * 38 + [False] * 2),
        "4": _report([True] * 20 + [False] * 20),
        "8": _report([True] * 39 + [False]),
    }
    report = DelayReport.build("naive", reports, {}, {("s", "t"): 20.0})
    assert [point.is_worse for point in report.points] == [False, False, True, False]
    assert report.tolerated == "2"
    assert report.points[2].loss is not None
    assert report.points[2].loss.value == -0.5
    assert report.points[0].robot_s.value == 2.0
    assert DelayReport.build("naive", {"4": reports["4"]}, {}, {}).tolerated is None


def test_motion_is_measured_inside_of_episodes_alone() -> None:
    actions = [None, [0.0], [1.0], [3.0], [3.0], None, [9.0], [9.0]]
    chunks = [-1, 0, 0, 1, -1, -1, 0, 0]
    plain: dict[str, Any] = {name: [None] * 8 for name in schema().names}
    plain |= {
        "trial": ["a"] * 5 + ["b"] * 3,
        "step": [0, 1, 2, 3, 4, 0, 1, 2],
        "chunk": chunks,
        "age": [0, 0, 1, 2, 1, 0, 0, 1],
        "action": actions,
    }
    found = motion_of(pa.table(plain, schema=schema()))
    assert (found.steps, found.held, found.borders) == (5, 1, 2)
    assert (found.jump, found.change) == (1.0, 0.5)
    assert (found.age, found.oldest) == (4 / 5, 2)
    assert found.jerk == 3.0  # of 0, 1, 3, 3
