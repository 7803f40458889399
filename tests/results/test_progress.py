import io
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hocket.core.data import Chunk, Episode, Outcome, Trial
from hocket.core.events import (
    AttemptFailed,
    BatchInferred,
    ChunksExecuted,
    EpisodeFilmed,
    EpisodesEnded,
    EpisodesSealed,
    Event,
    LanesReady,
    RunEnded,
    RunStarted,
    SitesChanged,
    SiteState,
    SpecLearned,
    WorkDone,
    WorkerChanged,
)
from hocket.core.specs import ActionSpec, EnvSpec, PolicySpec, TaskInfo
from hocket.results.scores import Score
from hocket.results.showing.progress import ProgressDisplay, clock, lines
from hocket.results.showing.tally import Tally
from hocket.system import machine
from hocket.system.waits import awaited, awaiting
from support.processes import wait_until

TRIALS = [Trial(suite="s", task="t", seed=seed) for seed in range(20)]
CHUNK = Chunk(actions=np.zeros((4, 2)), version=0, source="p")


def started(*, done: Sequence[Episode] = ()) -> RunStarted:
    policy = PolicySpec(chunk_length=4, concurrency=2)
    return RunStarted(trials=TRIALS, done=done, lanes=4, cores=2, policy=policy)


def batch(time: float, *, rows: int = 2, lost: int = 0, took: float = 0.5) -> BatchInferred:
    return BatchInferred(
        time=time,
        batch=0,
        began=time - took,
        ended=time,
        lanes=range(rows),
        trials=TRIALS[:rows],
        attempts=[0] * rows,
        chunks=[0] * rows,
        delivered=[CHUNK] * (rows - lost) + [None] * lost,
        ready=[0.0] * rows,
        size=8,
    )


def executed(time: float, *, steps: Sequence[int], busy: Sequence[float]) -> ChunksExecuted:
    n = len(steps)
    return ChunksExecuted(
        time=time,
        lanes=range(n),
        trials=TRIALS[:n],
        attempts=[0] * n,
        chunks=[0] * n,
        steps=steps,
        rewards=[np.zeros(k) for k in steps],
        terminated=[False] * n,
        truncated=[False] * n,
        busy=busy,
        observed=[0.0] * n,
        final=[None] * n,
    )


def ended(time: float, *outcomes: Outcome, first: int = 0) -> EpisodesEnded:
    episodes = [
        Episode(trial=TRIALS[first + i], attempt=0, outcome=outcome, steps=4, total_reward=0.0)
        for i, outcome in enumerate(outcomes)
    ]
    return EpisodesEnded(time=time, lanes=range(len(episodes)), episodes=episodes)


def failed(error: str, *, attempt: int = 0) -> AttemptFailed:
    return AttemptFailed(
        time=1.0, lane=0, trial=TRIALS[0], attempt=attempt, error=error, again=True
    )


def tally_of(*events: Event) -> Tally:
    tally = Tally()
    for event in events:
        tally.on(event)
    return tally


def test_success_is_counted_apart_from_errors_and_episodes_without_a_verdict() -> None:
    outcomes = [Outcome.SUCCESS] * 3 + [Outcome.FAILURE, Outcome.ERROR, Outcome.FINISHED]
    tally = tally_of(started(), ended(2.0, *outcomes))
    assert (tally.done, tally.rate.n, tally.rate.errors) == (6, 4, 1)
    assert tally.rate.value == pytest.approx(0.75)


def test_an_episode_that_is_lost_before_it_is_sealed_is_counted_once() -> None:
    tally = tally_of(started(), ended(2.0, *[Outcome.SUCCESS] * 4))
    tally.on(failed("its worker died before the files were sealed"))
    assert (tally.done, tally.rate.n, tally.failed_attempts) == (3, 3, 1)
    again = ended(4.0, Outcome.FAILURE)
    tally.on(again)
    assert (tally.done, tally.rate.successes, tally.rate.n) == (4, 3, 4)
    tally.on(EpisodesSealed(time=5.0, episodes=again.episodes))
    assert tally.done == 4


def test_speeds_are_those_of_the_last_seconds() -> None:
    events = [started(), batch(1.0)]
    for second in range(2, 42):
        steps = 1000 if second < 20 else 8
        events += [batch(second, lost=1), executed(second, steps=[steps], busy=[1.0])]
    speed = tally_of(*events).speed()
    assert speed is not None
    assert speed.steps_per_s == pytest.approx(8, rel=0.15)
    assert speed.mean_batch == pytest.approx(1.0), "a row that failed is no chunk"
    assert speed.cores_busy is None, "workers elsewhere do not tell their processor time"
    assert speed.policy_busy == pytest.approx(0.25, rel=0.15)


@pytest.mark.skipif(machine.cpu_s() is None, reason="nothing tells processor time here")
def test_cores_are_busy_by_processor_time_and_not_while_envs_sleep() -> None:
    def share(work: Callable[[], None]) -> float:
        tally = tally_of(replace(started(), counts_cpu=True), batch(1.0))
        work()
        tally.on(executed(2.0, steps=[100], busy=[1.0]))
        tally.on(RunEnded(time=2.0, complete=True, notes={}))
        found = tally.throughput()
        assert found.worked_s == 1.0
        assert found.cores_busy is not None
        return found.cores_busy

    def spin() -> None:
        while time.process_time() < until:
            pass

    sleeping = share(lambda: time.sleep(0.5))
    until = time.process_time() + 0.5
    # One of these cores, as far as the machine lets this process have it.
    assert sleeping < share(spin) <= 1.0


def test_the_rate_while_a_run_goes_on_is_the_one_of_its_report() -> None:
    trials = [Trial(suite="toy", task=f"t{t}", seed=s) for s in range(20) for t in range(10)]
    outcomes = [Outcome.SUCCESS if (t.seed * 7) % 10 < 6 else Outcome.FAILURE for t in trials]
    episodes = [
        Episode(trial=trial, attempt=0, outcome=outcome, steps=1, total_reward=0.0)
        for trial, outcome in zip(trials, outcomes, strict=True)
    ]
    for independent in (False, True):
        tally = tally_of(
            replace(started(), trials=trials, independent_starts=independent),
            EpisodesEnded(time=2.0, lanes=range(200), episodes=episodes),
        )
        assert tally.rate == Score.of(episodes, independent=independent).success


def test_time_left_counts_from_the_first_batch_and_without_what_was_done_before() -> None:
    carried = ended(0.0, *[Outcome.SUCCESS] * 10).episodes
    tally = tally_of(started(done=carried))
    assert tally.left_s is None
    tally.on(batch(100.5))
    tally.on(ended(110.0, Outcome.SUCCESS, Outcome.FAILURE, first=10))
    assert tally.done == 12
    assert tally.left_s == pytest.approx(8 * 10.0 / 2)


def test_sites_are_told_with_their_speed_and_the_time_that_is_left() -> None:
    def sites(at: float, running: int, batches: int) -> SitesChanged:
        site = SiteState(
            name="one", lanes=2, cores=1, running=running, episodes=batches, doing="running"
        )
        done = WorkDone(10 * batches, batches, batches, batches, 0.0, 0.0)
        return SitesChanged(time=at, sites=[site], done=done)

    tally = tally_of(
        RunStarted(trials=TRIALS, done=(), lanes=0, cores=1, policy=PolicySpec(chunk_length=0))
    )
    assert lines(tally)[1:] == ["no site has joined yet"]
    tally.on(sites(1.0, 2, 0))
    assert tally.left_s is None
    for second in range(2, 5):
        tally.on(ended(second, Outcome.SUCCESS, first=second))
        # An attempt that has ended is heard of after the next one has begun.
        tally.on(sites(second, 3, second - 1))
    assert lines(tally)[1:] == [
        "1 of 1 site ready, with 2 lanes; 1.00 episodes/s, 10 env steps/s",
        "one: 2 of 2 lanes busy, 3 episodes; running",
    ]
    assert tally.left_s == pytest.approx(1.0 * (tally.planned - 3))


def test_phases_follow_the_run() -> None:
    tally = Tally()
    seen = [tally.phase]
    ready = LanesReady(time=1.0, lanes=[0], trials=TRIALS[:1], attempts=[0])
    for event in (started(), ready, batch(3.0), ready, RunEnded(time=9, complete=True, notes={})):
        tally.on(event)
        seen.append(tally.phase)
    assert seen == [
        "preparing",
        "starting workers",
        "warming up the policy",
        "running",
        "running",
        "done",
    ]


def test_workers_that_went_are_no_longer_up() -> None:
    changes = [
        WorkerChanged(time=0.0, lanes=[lane], state=state)
        for lane, state in ((0, "starting"), (0, "up"), (1, "up"), (1, "lost"))
    ]
    tally = tally_of(started(), *changes)
    assert tally.lanes_up == 1
    assert any("1 of 4 lanes are up" in line for line in lines(tally))


def test_a_log_gets_lines_when_the_phase_changes_and_no_control_codes() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream=stream) as progress:
        progress.on(started())
        for second in range(1, 50):
            progress.on(batch(float(second)))
        progress.on(ended(50.0, Outcome.SUCCESS))
        progress.on(RunEnded(time=50.0, complete=True, notes={}))
    text = stream.getvalue()
    assert text.count("\n") == 4, "preparing comes first"
    assert "1/20 episodes, 100.0 % succeed [21, 100]" in text
    assert "\x1b" not in text


def test_a_log_tells_the_time_that_is_left_of_the_run_and_of_filming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(100.0, 20.0)
    monkeypatch.setattr("hocket.results.showing.progress.time.perf_counter", lambda: next(clock))
    stream = io.StringIO()
    with ProgressDisplay(stream=stream) as progress:
        progress.on(started())
        progress.on(batch(1.0))
        progress.on(ended(11.0, Outcome.SUCCESS))
        progress.on(batch(11.0))
        progress.on(RunEnded(time=11.0, complete=True, notes={}))
        progress.on(EpisodeFilmed(trial=TRIALS[0], error=None, done=1, total=3))
    text = stream.getvalue()
    assert "3:20 left" in text, "19 of 20 trials at 10.5 s each"
    assert "filming: 1 of 3 episodes are done; Ctrl-C leaves out the others, 2:00 left" in text


def test_equal_errors_are_shown_once_and_the_others_counted() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream=stream) as progress:
        progress.on(started())
        for attempt in range(5):
            progress.on(failed(f"Boom in process {100 + attempt} at 0xff{attempt}"))
        progress.on(failed("Another"))
    text = stream.getvalue()
    assert text.count("Boom") == 1
    assert text.count("Another") == 1
    assert "4 more failed attempts not shown" in text


def test_a_note_of_an_env_is_shown_once() -> None:
    action = ActionSpec(
        size=1, kind="box", shape=(1,), dtype="<f4", low=np.zeros(1), high=np.ones(1)
    )
    spec = EnvSpec(
        task=TaskInfo(name="t"),
        action=action,
        observations={},
        cameras=(),
        abilities=(),
        notes=("Images differ.",),
    )
    stream = io.StringIO()
    with ProgressDisplay(stream=stream) as progress:
        for time in (1.0, 2.0):
            progress.on(SpecLearned(time=time, suite="s", spec=spec))
    assert stream.getvalue().count("Images differ.") == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_left_clean_with_only_errors_standing() -> None:
    terminal = Terminal()
    with ProgressDisplay(stream=terminal) as progress:
        progress.on(started())
        progress.on(batch(1.0))
        progress.on(failed("Boom"))
        progress.on(ended(2.0, Outcome.SUCCESS))
    progress.close()
    text = terminal.getvalue()
    assert "Boom" in text
    assert text.endswith(("\x1b[2K", "\x1b[?25h")), "the block is erased, the cursor shown"


def test_what_is_awaited_before_a_run_begins_is_told_while_it_is() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream=stream, age_s=30.0), awaiting("a server at nowhere:9"):
        wait_until(lambda: "waiting for a server at nowhere:9" in stream.getvalue())
    text = stream.getvalue()
    assert text.startswith("[   30."), "the clock began with the command"
    assert not awaited()


def test_what_is_awaited_in_the_middle_of_a_run_is_told() -> None:
    tally = tally_of(started(), batch(1.0))
    with awaiting("a server"):
        assert lines(tally)[-1] == "waiting for a server"


def test_quiet_says_nothing() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream=stream, quiet=True) as progress:
        progress.on(started())
        progress.on(failed("Boom"))
    assert stream.getvalue() == ""


def test_clocks() -> None:
    assert [clock(s) for s in (None, 0.4, 62, 3723)] == ["-", "0:00", "1:02", "1:02:03"]
