"""A report counts every planned trial once, keeps errors apart, and survives the disk."""

from __future__ import annotations

import io
import json
import math
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hocket import evaluate
from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import RunFolderError
from hocket.results import stats
from hocket.results.exactness import Claim
from hocket.results.report import Report
from hocket.results.scores import Score
from hocket.results.throughput import Throughput

SPEED = Throughput(
    env_steps=1000, chunks=80, batches=10, policy_busy=0.4, cores_busy=0.9, wall_s=2.0
)
SCORE_KEYS = {
    "n", "successes", "finished", "rate", "interval", "errors", "rate_errors_as_failures",
    "mean_steps", "mean_return", "return_interval",
}  # fmt: skip
EPISODE_KEYS = {
    "trial", "suite", "task", "seed", "repeat", "outcome", "steps", "return", "attempts", "error",
}  # fmt: skip


def trial(task: str = "reach", seed: int = 0, suite: str = "toy") -> Trial:
    return Trial(suite=suite, task=task, seed=seed)


def episode(of: Trial, outcome: Outcome = Outcome.SUCCESS, **fields: Any) -> Episode:
    values: dict[str, Any] = {"attempt": 0, "steps": 10, "total_reward": 1.0, **fields}
    if outcome is Outcome.ERROR:
        values.setdefault("error", "Traceback: boom")
    return Episode(trial=of, outcome=outcome, **values)


def build(episodes: list[Episode], *, trials: list[Trial] | None = None, **fields: Any) -> Report:
    values: dict[str, Any] = {
        "config": {"env": "toy"},
        "claim": Claim(level="bitwise"),
        "throughput": SPEED,
        "version": "0.1.0",
        **fields,
    }
    planned = [e.trial for e in episodes] if trials is None else trials
    return Report.build(trials=planned, episodes=episodes, **values)


@pytest.fixture
def mixed() -> Report:
    """Two suites, three tasks, an error, a trial still to run; episodes as they happened to end."""
    trials = [trial(task, seed) for task in ("reach", "push") for seed in range(4)]
    trials += [trial("swing", seed, suite="gym:Pendulum-v1") for seed in range(2)]
    outcomes = [Outcome.SUCCESS] * 3 + [Outcome.ERROR] + [Outcome.SUCCESS] + [Outcome.FAILURE] * 2
    ended = [
        episode(t, o, steps=10 + i) for i, (t, o) in enumerate(zip(trials, outcomes, strict=False))
    ]
    ended += [episode(t, Outcome.FINISHED, total_reward=-200.0 + t.seed) for t in trials[8:]]
    return build(ended[::-1], trials=trials)


def test_episodes_come_in_planned_order_whatever_order_they_ended_in(mixed: Report) -> None:
    assert [e.trial.id for e in mixed.episodes][:5] == [
        "toy/reach/0", "toy/reach/1", "toy/reach/2", "toy/reach/3", "toy/push/0",
    ]  # fmt: skip


def test_errors_are_not_failures(mixed: Report) -> None:
    reach = mixed.tasks[0]
    assert (reach.n, reach.errors, reach.rate) == (3, 1, 1.0)
    assert reach.rate_errors_as_failures == 0.75


def test_a_rate_is_over_the_episodes_that_could_succeed(mixed: Report) -> None:
    assert (mixed.overall.n, mixed.overall.finished, mixed.overall.success.n) == (8, 2, 6)
    assert mixed.overall.rate == pytest.approx(4 / 6)
    assert mixed.overall.rate_errors_as_failures == pytest.approx((3 / 4 + 1 / 3) / 2)


def test_each_task_counts_once_in_the_overall_rate_however_many_trials_it_has() -> None:
    trials = [trial("reach", seed) for seed in range(20)] + [trial("push", seed) for seed in (0, 1)]
    won = {t: t.task == "reach" for t in trials}
    ended = [episode(t, Outcome.SUCCESS if won[t] else Outcome.FAILURE) for t in trials]
    report = build(ended, trials=trials)
    assert report.overall.rate == 0.5
    assert report.overall.success.successes == 20
    assert "each counts once" in report.summary
    even = build(ended[:2] + ended[20:], trials=trials[:2] + trials[20:])
    assert "each counts once" not in even.summary


def test_an_unfinished_report_says_that_early_enders_are_no_fair_sample() -> None:
    trials = [trial("reach", seed) for seed in range(3)]
    report = build([episode(trials[0], Outcome.SUCCESS)], trials=trials)
    assert "INCOMPLETE: 1 of 3 trials" in report.summary
    assert "no fair sample" in " ".join(str(report).split())
    whole = build([episode(t, Outcome.SUCCESS) for t in trials], trials=trials)
    assert "fair sample" not in whole.summary


def test_finished_episodes_alone_have_no_rate_but_a_return(mixed: Report) -> None:
    found = mixed.suites[1].to_json()
    assert (found["n"], found["rate"], found["interval"]) == (2, None, None)
    assert found["rate_errors_as_failures"] is None
    assert found["mean_return"] == -199.5


def test_trials_that_did_not_run_leave_the_report_incomplete(mixed: Report) -> None:
    assert not mixed.complete
    assert mixed.planned == 10
    assert "INCOMPLETE: 9 of 10 trials" in mixed.summary
    assert build([episode(trial())]).complete


def test_a_task_that_never_ran_is_listed_with_n_0() -> None:
    report = build([episode(trial())], trials=[trial(), trial("push")])
    assert [(score.task, score.n, score.rate) for score in report.tasks] == [
        ("reach", 1, 1.0),
        ("push", 0, None),
    ]


def test_a_trial_cannot_be_counted_twice() -> None:
    with pytest.raises(ValueError, match="two episodes"):
        build([episode(trial()), episode(trial(), Outcome.FAILURE)], trials=[trial()])


def test_an_episode_that_nobody_planned_is_refused() -> None:
    with pytest.raises(ValueError, match="toy/push/0 was not planned"):
        build([episode(trial("push"))], trials=[trial()])


def test_no_trials_make_a_report_without_numbers() -> None:
    report = build([])
    assert (report.overall.n, report.overall.rate) == (0, None)
    assert "overall" in str(report)


def test_json_has_exactly_the_promised_keys(mixed: Report) -> None:
    found = mixed.to_json()
    assert set(found) == {
        "format", "hocket", "config", "exactness", "independent_starts", "complete", "planned",
        "overall", "suites", "tasks", "episodes", "throughput",
    }  # fmt: skip
    assert set(found["overall"]) == SCORE_KEYS
    assert all(set(score) == SCORE_KEYS | {"suite"} for score in found["suites"])
    assert all(set(score) == SCORE_KEYS | {"suite", "task"} for score in found["tasks"])
    assert all(set(row) == EPISODE_KEYS for row in found["episodes"])
    assert found["throughput"]["env_steps_per_s"] == 500.0
    assert found["throughput"]["mean_batch"] == 8.0


def test_json_holds_no_nan_whatever_went_in() -> None:
    config = {"a": math.nan, "b": (np.float32(2), np.arange(2)), 3: Path("x"), "o": Outcome.ERROR}
    report = build(
        [episode(trial(), total_reward=math.nan), episode(trial(seed=1), total_reward=math.inf)],
        config=config,
        throughput=Throughput(policy_busy=math.nan),
    )
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found["config"] == {"a": None, "b": [2.0, [0, 1]], "3": "x", "o": "error"}
    assert found["overall"]["mean_return"] is None
    assert found["episodes"][0]["return"] is None
    assert found["throughput"]["policy_busy"] is None
    assert found["throughput"]["env_steps_per_s"] is None


def test_a_saved_report_loads_as_it_was(mixed: Report, tmp_path: Path) -> None:
    target = mixed.save(tmp_path)
    assert os.listdir(tmp_path) == ["report.json"]
    for place in (tmp_path, target):
        found = Report.load(place)
        assert found.to_json() == mixed.to_json()
        assert str(found) == str(mixed)


def test_saving_replaces_an_older_report(mixed: Report, tmp_path: Path) -> None:
    mixed.save(tmp_path)
    replace(mixed, version="9").save(tmp_path)
    assert Report.load(tmp_path).version == "9"


@pytest.mark.parametrize("folder", ["report.json", "missing"])
def test_a_folder_that_is_none_is_refused(mixed: Report, tmp_path: Path, folder: str) -> None:
    mixed.save(tmp_path)
    with pytest.raises(RunFolderError, match="cannot be written"):
        mixed.save(tmp_path / folder)


def test_a_write_that_breaks_off_leaves_the_old_report_and_no_litter(
    mixed: Report, tmp_path: Path
) -> None:
    before = mixed.save(tmp_path).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(RunFolderError, match="File too large"):
            mixed.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["report.json"]
    assert (tmp_path / "report.json").read_bytes() == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hocket": "0.1.0"}'])
def test_a_file_that_is_no_report_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"report\.json"):
        Report.load(tmp_path)


def test_a_folder_without_a_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="Cannot read"):
        Report.load(tmp_path)


LONG = "pick_up_the_black_bowl_between_the_plate_and_the_ramekin_and_place_it_on_the_plate"


def plain(report: Report, width: int) -> str:
    return report.results().text(width)


def rich(report: Report, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(report.table())
    found = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("show", [plain, rich])
def test_tables_fit_the_terminal_and_lose_no_name(
    show: Callable[[Report, int], str], width: int
) -> None:
    report = build(
        [
            episode(trial(LONG)),
            episode(trial("[bold] task", 1), Outcome.FAILURE),
            episode(trial("a", 2), Outcome.ERROR),
            episode(trial("b", 2), Outcome.FINISHED, total_reward=-1234.5),
        ]
    )
    text = show(report, width)
    assert max(len(line) for line in text.splitlines()) <= width
    names = "".join(line[:26].strip() for line in text.splitlines())
    assert LONG[:12] in names
    assert text.count("_") == LONG.count("_")
    assert "[bold] task" in text
    assert "[20.7, 100.0]" in text
    assert "rate if" in text


def test_columns_that_say_nothing_are_left_out(mixed: Report) -> None:
    clean = str(build([episode(trial()), episode(trial(seed=1), Outcome.FAILURE)]))
    assert "return" not in clean
    assert "rate if" not in clean
    assert "errors" in clean
    unjudged = str(
        build([episode(trial(), Outcome.FINISHED), episode(trial(seed=1), Outcome.ERROR)])
    )
    assert "rate if" not in unjudged
    assert "success" not in unjudged
    assert "return" in unjudged
    assert "rate if" in str(mixed)


def cells(report: Report, name: str) -> list[str]:
    """A row of the printed table, without its name."""
    (line,) = [line for line in plain(report, 120).splitlines() if line.strip().startswith(name)]
    return line.strip().removeprefix(name).replace("[", "").split()


def test_a_mixed_run_shows_each_number_with_its_own_n() -> None:
    judged = [episode(trial(seed=k), total_reward=3.0, steps=7) for k in range(10)]
    swings = [trial("swing", k, suite="gym:Pendulum-v1") for k in range(3)]
    report = build([*judged, *(episode(t, Outcome.FINISHED, total_reward=-200.0) for t in swings)])
    assert cells(report, "overall") == ["10", "100.0", "%", "72.2,", "100.0]", "-", "-", "0"]
    assert cells(report, "swing") == ["3", "-", "-", "-200.0", "10.0", "0"]
    assert cells(report, "reach")[5:] == ["3.00", "7.0", "0"]
    assert "3 episodes had nothing to succeed at: no part of overall n." in report.summary
    assert "nothing to succeed" not in build(judged).summary


def test_returns_of_unlike_envs_have_no_mean() -> None:
    one = [episode(trial("a", k), Outcome.FINISHED, total_reward=-200.0) for k in range(2)]
    other = [episode(trial("b", 0, "gym:B"), Outcome.FINISHED, total_reward=4000.0)]
    report = build([*one, *other])
    assert report.overall.returns.value is None
    assert report.overall.to_json()["return_interval"] is None
    assert [suite.returns.value for suite in report.suites] == [-200.0, 4000.0]
    assert build(one).overall.returns.value == -200.0


def test_attempts_that_were_lost_are_told_even_where_no_trial_is() -> None:
    lost = [episode(trial(seed=0), attempt=2), episode(trial(seed=1), attempt=1)]
    report = build([*lost, episode(trial(seed=2))])
    assert report.overall.errors == 0
    assert "3 attempts were lost and run again." in report.summary
    assert "lost" not in build([episode(trial())]).summary
    errors = build([episode(trial(), Outcome.ERROR, attempt=2), episode(trial(seed=1), attempt=1)])
    assert "3 attempts were lost and run again." in errors.summary


def test_notebooks_get_a_table_with_names_escaped() -> None:
    found = build([episode(trial("<script>"))])._repr_html_()
    assert "&lt;script&gt;" in found
    assert "<script>" not in found
    assert found.count("<tr>") == 4


def test_throughput_of_nothing_is_undefined() -> None:
    assert Throughput().env_steps_per_s is None
    assert Throughput().mean_batch is None


def test_all_errors_have_no_rate_and_nothing_succeeded() -> None:
    score = Score.of([episode(trial(), Outcome.ERROR)])
    assert (score.n, score.rate, score.rate_errors_as_failures) == (0, None, 0.0)


def shared(won: Callable[[int, int], bool]) -> list[Episode]:
    """Ten tasks on twenty seeds."""
    return [
        episode(trial(task=f"t{t}", seed=s), Outcome.SUCCESS if won(t, s) else Outcome.FAILURE)
        for s in range(20)
        for t in range(10)
    ]


def test_seeds_that_tasks_share_count_once_where_all_tasks_go_alike() -> None:
    found = build(shared(lambda _, seed: seed < 12)).overall.success
    alone = stats.wilson(12, 20)
    assert alone is not None
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((alone.low, alone.high))
    assert found.n == 200
    apart = build(shared(lambda _, seed: seed < 12), independent_starts=True).overall.success
    assert apart.interval == stats.wilson(120, 200)


def test_a_report_says_that_starts_are_shared_and_keeps_it(tmp_path: Path) -> None:
    report = build(shared(lambda task, seed: (task + seed) % 3 > 0))
    assert "Trials of one seed may start alike" in report.summary
    report.save(tmp_path)
    assert Report.load(tmp_path).overall == report.overall
    known = build(shared(lambda task, seed: (task + seed) % 3 > 0), independent_starts=True)
    assert "start alike" not in known.summary
    known.save(tmp_path)
    assert Report.load(tmp_path).overall == known.overall != report.overall


def test_returns_of_tasks_that_share_starts_have_as_wide_an_interval_as_their_seeds() -> None:
    luck = np.random.default_rng(3).normal(size=20)
    rows = [
        episode(trial(task=f"t{t}", seed=s), Outcome.FINISHED, total_reward=float(luck[s]))
        for s in range(20)
        for t in range(10)
    ]
    found, expected = build(rows).overall.returns, stats.mean(luck)
    assert found.interval is not None
    assert expected.interval is not None
    assert found.interval.low == pytest.approx(expected.interval.low)
    assert found.n == 200


def test_up_to_a_thousand_episodes_are_listed_and_more_have_a_file_of_their_own(
    tmp_path: Path,
) -> None:
    ended = [episode(trial(seed=seed), steps=seed, told={"x": seed}) for seed in range(998)]
    ended += [
        episode(trial(seed=998), Outcome.ERROR, error='two\nlines, "quoted"', attempt=2),
        episode(trial("push"), Outcome.FAILURE, diverged=True, remarks=("It fell.", "Twice.")),
        episode(Trial("b / c", "d", 2**62, 7), progress=0.25, told={"x": True, "y": 0.5}),
    ]
    few, many = build(ended[:1000]), build(ended)
    few.save(tmp_path)
    assert len(json.loads((tmp_path / "report.json").read_text())["episodes"]) == 1000
    many.save(tmp_path)
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["episodes"] == "episodes.parquet"
    assert list(Report.load(tmp_path).episodes) == ended
    assert Report.load(tmp_path).overall == many.overall
    few.save(tmp_path)
    assert not (tmp_path / "episodes.parquet").exists(), "it told of other episodes"
    replace(many, config={"json_episodes": True}).save(tmp_path)
    assert len(json.loads((tmp_path / "report.json").read_text())["episodes"]) == 1001


def test_a_report_beside_a_file_of_other_episodes_is_refused(tmp_path: Path) -> None:
    ended = [episode(trial(seed=seed)) for seed in range(1001)]
    build([e._replace(outcome=Outcome.FAILURE) for e in ended]).save(tmp_path / "..")
    other = (tmp_path / ".." / "episodes.parquet").read_bytes()
    build(ended).save(tmp_path)
    (tmp_path / "episodes.parquet").write_bytes(other)
    with pytest.raises(RunFolderError, match="not the file that the report"):
        Report.load(tmp_path)


def test_a_report_is_a_table_with_a_row_for_each_episode(tmp_path: Path) -> None:
    report = evaluate(env="toy:count", policy="scripted", episodes=3, out=tmp_path / "run")
    table = Report.load(tmp_path / "run").to_arrow()
    assert table.column("trial").to_pylist() == [e.trial.id for e in report.episodes]
    assert table.column("outcome").to_pylist() == [e.outcome.value for e in report.episodes]
    assert table.column("return").to_pylist() == [e.total_reward for e in report.episodes]
