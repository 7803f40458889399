"""Several delays and disturbances on the same trials, in one table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import yaml

from hocket.cli import compare, train
from hocket.cli import eval as verb
from hocket.core.contracts.recorder import Followed
from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import ConfigError, UsageError
from hocket.records.step_rows import SCHEMA
from hocket.results.arms import Arm, ArmTable, motion_of
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.results.exactness import Claim
from hocket.results.report import Report
from hocket.results.throughput import Throughput
from hocket.runs.arms import arms_of

TOY = ["--env", "toy:count", "--policy", "support.delayed:Waves", "--lanes", "1"]


def points(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "jobs.json").read_text())["runs"]
    return found


def test_sweep_makes_a_run_for_each_delay_and_one_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    flags = ["--episodes", "3", "--delay", "0,2,1..4", "--method", "naive", "--video", "none"]
    assert verb.run([*TOY, *flags, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "Tango's score test" in shown
    runs = points(out)
    assert [run["report"]["config"].get("delay", "0") for run in runs] == ["0", "2", "1..4"]
    assert [run["report"]["overall"]["n"] for run in runs] == [3, 3, 3]
    ages = [run["motion"]["oldest"] for run in runs]
    assert ages == [4, 6, 8]  # d + s - 1, with decisions every 5 steps
    # The toy runs at 20 steps a second, and only its last step succeeds.
    episodes = Report.load(out / "delay-2").episodes
    won = [e.steps / 20 for e in episodes if e.outcome is Outcome.SUCCESS]
    assert runs[1]["robot_s"]["value"] == pytest.approx(np.mean(won))
    assert "delay 2" in (out / "jobs.html").read_text()
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


def _report(wins: list[bool], delay: str = "0") -> Report:
    trials = [Trial("s", "t", seed) for seed in range(len(wins))]
    outcomes = [Outcome.SUCCESS if won else Outcome.FAILURE for won in wins]
    episodes = [Episode(t, 0, o, 40, 1.0) for t, o in zip(trials, outcomes, strict=True)]
    config: dict[str, Any] = {"env": ["s"], "policy": "p", "delay": delay}
    return Report.build(
        config=config,
        claim=Claim(level="inputs"),
        trials=trials,
        episodes=episodes,
        throughput=Throughput(),
    )


def _table(wins: dict[str, list[bool]], base: str | None) -> ArmTable:
    reports = {name: _report(won, name) for name, won in wins.items()}
    sides = {
        name: Side.of_report(report, Path(name), [e.trial for e in report.episodes])
        for name, report in reports.items()
    }
    arms = [
        Arm(
            name=name,
            folder=name,
            report=report,
            found=compare_runs(sides[name], sides[base]) if base not in (None, name) else None,
        )
        for name, report in reports.items()
    ]
    return ArmTable(arms=tuple(arms), base=base)


def test_largest_delay_without_a_significant_loss_is_told() -> None:
    wins = {
        "0": [True] * 40,
        "2": [True] * 38 + [False] * 2,
        "4": [True] * 20 + [False] * 20,
        "8": [True] * 39 + [False],
    }
    table = _table(wins, "0")
    assert [arm.is_worse for arm in table.arms] == [False, False, True, False]
    assert table.tolerated == "2"
    assert "without a significant loss is 2" in table.sentence
    assert table.arms[2].found is not None
    assert table.arms[2].found.comparison.overall.value == -0.5
    alone = _table({"4": wins["4"]}, None)
    assert alone.tolerated is None
    assert alone.sentence == ""


def test_a_base_without_a_report_is_named_instead_of_a_difference() -> None:
    made = _table({"delay 2": [True]}, None).arms[0]
    failed = Arm(name="delay 0", folder="delay-0", error="EnvError: no")
    table = ArmTable(arms=(failed, made), base="delay 0")
    assert table.sentence == "Nothing is compared: there is no report of delay 0."
    other = ArmTable(arms=(made, failed), base="delay 2")
    assert other.sentence == "Nothing is compared with delay 2: no other run has a report."
    assert other.failed == [("delay 0", "EnvError: no")]


PLAIN = {"env": ["toy:count"], "policy": "scripted", "method": "naive"}


def test_every_disturbance_is_run_at_every_delay_and_the_base_has_neither() -> None:
    jobs = arms_of({**PLAIN, "delay": "2,0"}, "state:noise=5")
    assert {name: (run.perturb, str(run.delay)) for name, run in jobs.runs.items()} == {
        "clean, delay 2": ("", "2"),
        "clean, delay 0": ("", "0"),
        "state:noise=5, delay 2": ("state:noise=5", "2"),
        "state:noise=5, delay 0": ("state:noise=5", "0"),
    }
    assert jobs.base == "clean, delay 0"
    late = arms_of({**PLAIN, "delay": "2"}, "state:noise=5")
    assert late.base == "clean"
    assert {str(run.delay) for run in late.runs.values()} == {"2"}
    assert list(arms_of({**PLAIN, "perturb": "prompt:empty"}, None).runs) == [""]


def test_runs_that_are_compared_do_not_stop_when_something_is_decided() -> None:
    decided = {**PLAIN, "until": "decided", "against": "runs/x"}
    with pytest.raises(ConfigError, match="leave out until='decided'"):
        arms_of({**decided, "delay": "0,2"}, None)


def test_disturbances_at_several_delays_are_run_disturbed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "arms"
    flags = ["--episodes", "2", "--delay", "0,1", "--method", "naive", "--video", "none"]
    assert verb.run([*TOY, *flags, "--perturb", "state:noise=5", "--out", str(out)]) == 0
    assert "Differences to clean, delay 0" in capsys.readouterr().out
    settings = {
        path.name: yaml.safe_load((path / "run.yaml").read_text())["perturb"]
        for path in out.iterdir()
        if path.is_dir()
    }
    assert settings == {
        "clean-delay-0": "",
        "clean-delay-1": "",
        "state-noise-5-delay-0": "state:noise=5",
        "state-noise-5-delay-1": "state:noise=5",
    }


class Seen:
    """A reader of the user's own: writes down what it was made for, and what it hears."""

    made: ClassVar[list[Seen]] = []

    def __init__(self, argument: str, run: Followed) -> None:
        self.argument, self.name, self.events = argument, run.folder.name, 0
        self.is_closed = False
        Seen.made.append(self)

    def on(self, event: object) -> None:
        self.events += 1

    def close(self) -> None:
        self.is_closed = True


def test_readers_and_the_page_follow_every_run_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Seen.made.clear()
    pages: list[tuple[Path, bool]] = []

    @contextlib.contextmanager
    def page(folder: Path, *, is_one_run: bool) -> Iterator[str]:
        pages.append((folder, is_one_run))
        yield "http://here"

    monkeypatch.setattr("hocket.watch.process.beside", page)
    follow = ["--watch", "--reader", f"{__name__}:Seen=here"]
    flags = ["--episodes", "1", "--video", "none", "--perturb", "state:noise=5"]
    assert verb.run([*TOY, *flags, *follow, "--out", str(tmp_path / "out")]) == 0
    assert [(one.name, one.argument) for one in Seen.made] == [
        ("clean", "here"),
        ("state-noise-5", "here"),
    ]
    assert all(one.events and one.is_closed for one in Seen.made)
    assert pages == [(tmp_path / "out", False)]


def test_a_dry_run_shows_every_run_and_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arms = ["--perturb", "state:noise=5", "--delay", "0,2", "--method", "naive"]
    assert verb.run([*TOY, *arms, "--dry-run", "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "state:noise=5, delay 2:" in shown
    assert "compared with: clean, delay 0" in shown
    assert not out.exists()


def test_json_is_json_also_where_a_run_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ["--perturb", "image:blank", "--episodes", "1", "--video", "none"]
    assert verb.run([*TOY, *arms, "--json", "--out", str(tmp_path / "out")]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["sentence"] == "Nothing is compared with clean: no other run has a report."
    assert "disturbs nothing" in told["runs"][1]["error"]
    assert told["runs"][0]["report"]["overall"]["n"] == 1


def test_motion_is_measured_inside_of_episodes_alone() -> None:
    actions = [None, [0.0], [1.0], [3.0], [3.0], None, [9.0], [9.0]]
    chunks = [-1, 0, 0, 1, -1, -1, 0, 0]
    plain: dict[str, Any] = {name: [None] * 8 for name in SCHEMA.names}
    plain |= {
        "trial": ["a"] * 5 + ["b"] * 3,
        "step": [0, 1, 2, 3, 4, 0, 1, 2],
        "chunk": chunks,
        "age": [0, 0, 1, 2, 1, 0, 0, 1],
        "action": actions,
    }
    found = motion_of(pa.table(plain, schema=SCHEMA))
    assert (found.steps, found.held, found.borders) == (5, 1, 2)
    assert (found.jump, found.change) == (1.0, 0.5)
    assert (found.age, found.oldest) == (4 / 5, 2)
    assert found.jerk == 3.0  # of 0, 1, 3, 3
