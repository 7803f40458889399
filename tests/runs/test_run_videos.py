from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import av
import pytest

import hocket
from hocket.core.data import Outcome
from hocket.core.events import EpisodeFilmed, Event
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.parquet import find_rows
from hocket.records.video.rerender import VideoWorkers
from hocket.results.report import Report
from hocket.runs.arms import Jobs
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.evaluation import run_jobs
from hocket.runs.run import Run
from hocket.runs.video import RenderConfig, plan_render, sinks_of
from hocket.system.durable import temporary
from hocket.workers.sinks.video import videos_in
from hocket.workers.supervisor import Supervisor
from support.heard import Heard


def evaluate(folder: Path, env: str = "toy:image", **settings: Any) -> Heard:
    heard = Heard()
    settings = {"episodes": 4, "lanes": 2, "policy": "random", **settings}
    report = hocket.evaluate(env=env, out=folder, readers=[heard], **settings)
    assert report.complete
    return heard


def filmed(folder: Path) -> dict[int, list[str]]:
    """Names of the videos of each seed's episode."""
    with LedgerView.open(folder) as ledger:
        episodes = ledger.episodes()
        root = ledger.folder
    found = {}
    for episode in episodes:
        place = root.attempt(episode.trial, episode.attempt)
        videos = [*videos_in(place).values(), *videos_in(place, lossless=True).values()]
        for path in videos:
            with av.open(str(path), format="mp4") as container:
                assert container.streams.video[0].frames == episode.steps + 1
        found[episode.trial.seed] = sorted(path.name for path in videos)
    return found


BOTH = ["image.mp4", "wrist_image.mp4"]


def outcomes(folder: Path) -> dict[int, Outcome]:
    with LedgerView.open(folder) as ledger:
        return {episode.trial.seed: episode.outcome for episode in ledger.episodes()}


def few(ended: dict[int, Outcome]) -> list[int]:
    """The seeds that are filmed by default, failures first."""
    failed = [seed for seed, outcome in ended.items() if outcome is Outcome.FAILURE]
    won = [seed for seed, outcome in ended.items() if outcome is Outcome.SUCCESS]
    assert len(failed) > 3, "a test needs more failures than are filmed"
    assert len(won) > 1
    return failed[:3] + won[:1]


def test_by_default_three_failures_and_one_success_are_filmed_by_the_runs_own_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = Supervisor.start
    monkeypatch.setattr(Supervisor, "start", lambda *a: (started.append(a), start(*a)))
    monkeypatch.setattr(VideoWorkers, "_start", lambda _: pytest.fail("a worker was started"))
    monkeypatch.setattr("hocket.system.machine.cores", lambda: 2)
    heard = evaluate(tmp_path / "run", episodes=10)
    assert len(started) == 2
    expected = few(outcomes(tmp_path / "run"))
    found = filmed(tmp_path / "run")
    assert {seed for seed, names in found.items() if names == BOTH} == set(expected)
    events = heard.of(EpisodeFilmed)
    assert [(event.done, event.total, event.error) for event in events] == [
        (done, 4, None) for done in range(5)
    ]
    assert {event.trial.seed for event in events if event.trial} == set(expected)
    assert heard.notes == []


class Interrupting(Heard):
    """Presses Ctrl-C when the first video is made."""

    def on(self, event: Event) -> None:
        super().on(event)
        if isinstance(event, EpisodeFilmed) and event.done == 1:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_the_report_is_told_before_filming_which_may_be_interrupted_without_loss(
    tmp_path: Path,
) -> None:
    root, heard, told = tmp_path / "run", Interrupting(), []

    def tell(report: Report) -> None:
        assert heard.of(EpisodeFilmed) == []
        assert Report.load(root).overall == report.overall, "it is saved already"
        told.append(report)

    settings = {"env": "toy:image", "policy": "random", "episodes": 10, "lanes": 2}
    with Run.new(EvalConfig.from_plain(settings), root) as run:
        report = run.finish(readers=[heard], on_report=tell)
    assert told == [report]
    assert report.complete
    assert any(f"`hocket video {root}` makes the others" in note for note in heard.notes)
    made = [seed for seed, names in filmed(root).items() if names]
    left = [seed for seed in few(outcomes(root)) if seed not in made]
    assert 1 <= len(made) < 4
    page = (root / "report.html").read_text()
    told_missing = re.search(r"(\d) episodes? not filmed yet", page)
    # One that was interrupted between its two cameras is missing too.
    assert told_missing
    assert len(left) <= int(told_missing[1]) <= 3
    assert f"toy:image/image/{left[0]}" in page
    assert f"hocket video {root.parent.name}/run" in page
    assert hocket.resume(root).complete
    assert {seed for seed, names in filmed(root).items() if names} == set(made + left)
    assert "not filmed yet" not in (root / "report.html").read_text()


@pytest.mark.parametrize("env", ["toy:image", "toy:pixels"])
def test_failures_alone_are_filmed_whether_in_line_or_later(tmp_path: Path, env: str) -> None:
    evaluate(tmp_path / "run", env, video="failures", episodes=6)
    with LedgerView.open(tmp_path / "run") as ledger:
        failed = {e.trial.seed for e in ledger.episodes() if e.outcome is Outcome.FAILURE}
    found = filmed(tmp_path / "run")
    assert {seed for seed, names in found.items() if names} == failed
    assert 0 < len(failed) < 6


def test_an_env_that_cannot_be_shown_again_is_filmed_in_line_and_the_cost_is_told(
    tmp_path: Path,
) -> None:
    heard = evaluate(tmp_path / "run", "toy:pixels", video="first:2")
    assert filmed(tmp_path / "run") == {0: ["image.mp4"], 1: ["image.mp4"], 2: [], 3: []}
    (note,) = heard.notes
    assert note.startswith("2 episodes were filmed while they ran, since pixels cannot be shown")
    assert not heard.of(EpisodeFilmed)


@pytest.mark.slow
def test_full_records_every_picture_and_none_records_no_steps(tmp_path: Path) -> None:
    evaluate(tmp_path / "full", record="full", video="none")
    lossless = ["image.lossless.m4v", "wrist_image.lossless.m4v"]
    assert filmed(tmp_path / "full") == dict.fromkeys(range(4), lossless)
    evaluate(tmp_path / "none", record="none")
    assert filmed(tmp_path / "none") == dict.fromkeys(range(4), BOTH)
    assert len(find_rows(tmp_path / "none", "states")) == 4
    assert list((tmp_path / "none" / "steps").glob("*")) == []


def test_without_a_folder_nothing_is_recorded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hocket.evaluate(env="toy:image", policy="random", episodes=1, lanes=1).complete
    assert list(tmp_path.iterdir()) == []


def test_an_env_without_cameras_is_no_trouble(tmp_path: Path) -> None:
    heard = evaluate(tmp_path / "run", "toy:count")
    assert filmed(tmp_path / "run") == {seed: [] for seed in range(4)}
    assert heard.notes == []


@pytest.mark.slow
def test_the_results_do_not_depend_on_what_is_filmed(tmp_path: Path) -> None:
    reports = [
        hocket.evaluate(
            env="toy:image", policy="random", out=tmp_path / video, episodes=3, lanes=2, video=video
        )
        for video in ("none", "all")
    ]
    outcomes = [[(e.outcome, e.total_reward) for e in report.episodes] for report in reports]
    assert outcomes[0] == outcomes[1]


@pytest.mark.slow
def test_resuming_a_finished_run_makes_the_videos_that_are_missing(tmp_path: Path) -> None:
    from hocket.runs.evaluation import resume

    evaluate(tmp_path / "run", video="first:2")
    place = tmp_path / "run" / "episodes" / "toy-image-image-1" / "0"
    for name in BOTH:
        (place / name).unlink()
    assert resume(tmp_path / "run").complete
    assert filmed(tmp_path / "run") == {0: BOTH, 1: BOTH, 2: [], 3: []}


def test_a_film_that_was_interrupted_between_two_cameras_is_made_again(tmp_path: Path) -> None:
    evaluate(tmp_path / "run", video="none")
    folder = RunFolder.at(tmp_path / "run")
    with LedgerView.open(folder) as ledger:
        episodes = ledger.episodes()
    place = folder.attempt(episodes[0].trial, 0)
    place.mkdir(parents=True)
    (place / "image.mp4").touch()
    there = plan_render(folder, episodes, RenderConfig())
    assert [episode.trial.seed for episode in there.there] == [0]
    temporary(place / "wrist_image.mp4").touch()
    again = plan_render(folder, episodes, RenderConfig())
    assert len(again.jobs) == 4
    one = plan_render(folder, episodes, RenderConfig(cameras=("observation/wrist_image",)))
    assert len(one.jobs) == 4
    assert len(plan_render(folder, episodes[:1], RenderConfig(again=True)).jobs) == 1


def test_sinks_are_no_more_than_is_asked_for() -> None:
    def names(**settings: Any) -> list[str]:
        config = hocket.EvalConfig(env=("toy",), policy="random", **settings)
        return [sink.name for sink in sinks_of(config, Assembly(config))]

    assert names() == ["steps", "states", "video"]
    assert names(video="none") == ["steps", "states"]
    assert names(record="none") == ["states", "video"]
    assert names(record="none", video="none") == []
    assert names(record="full") == ["steps", "states", "video", "video"]


@pytest.mark.slow
def test_what_rows_did_is_filmed_from_their_states(tmp_path: Path) -> None:
    heard = evaluate(
        tmp_path / "run",
        env="mjx:reach",
        env_config={"backend": "c", "threads": 1},
        policy="reference-mjx",
        video="first:2",
    )
    assert not [text for text in heard.notes if "film" in text]
    assert filmed(tmp_path / "run") == {0: ["image.mp4"], 1: ["image.mp4"], 2: [], 3: []}


def test_of_simulators_that_have_rows_alone_no_film_is_expected(tmp_path: Path) -> None:
    heard = evaluate(tmp_path / "run", env="vector:adapters.envs.test_vector:Pendulums")
    assert not [text for text in heard.notes if "film" in text]
    assert not any(filmed(tmp_path / "run").values())


@pytest.mark.parametrize(("name", "rate"), [("Pusher", 12), ("UntimedPusher", 10)])
def test_video_is_shown_at_the_rate_of_the_env_and_who_has_none_is_told(
    tmp_path: Path, name: str, rate: int
) -> None:
    heard = Heard()
    config = EvalConfig(
        env=(f"support.keyed_envs:{name}",), policy="random", episodes=1, lanes=1, video="all"
    )
    with Run.new(config, tmp_path / "run") as run:
        run.finish(readers=[heard])
    (video,) = (tmp_path / "run").rglob("pixels.mp4")
    with av.open(str(video)) as file:
        assert file.streams.video[0].average_rate == rate
    told = [text for text in heard.notes if "how fast it is controlled" in text]
    assert len(told) == (name == "UntimedPusher")


def test_workers_that_filmed_go_on_with_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = Supervisor.start
    monkeypatch.setattr(Supervisor, "start", lambda *a: (started.append(a), start(*a)))
    settings = {"env": "toy:image", "policy": "random", "episodes": 2, "lanes": 2, "video": "all"}
    jobs = Jobs(runs=dict.fromkeys(("a", "b"), EvalConfig.from_plain(settings)))
    table = run_jobs(jobs, tmp_path, readers=lambda _: [Heard()])
    assert [arm.error for arm in table.arms] == [None, None]
    assert len(started) == 2
    assert filmed(tmp_path / "a") == filmed(tmp_path / "b") == {0: BOTH, 1: BOTH}
