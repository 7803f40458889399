"""What recording costs: numbers and states beside a 1 ms env step, encoding beside rendering.

    python benchmarks/recording/cost.py [--quick] [--json FILE]

Numbers and states: whole evaluations of an env whose step is 1 ms of CPU, in one process (engine,
ledger and worker together), with `record="numbers"` and with `record="none"`. Encoding: MetaWorld
episodes shown again from their states, with the video sink and without. CPU seconds of the whole
process, all its threads; medians over interleaved repeats. Exit code 1 if a figure is missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import hocket
from hocket.core.contracts.recorder import AttemptStart, StepRecord
from hocket.core.data import Outcome, Trial
from hocket.core.specs import TaskInfo
from hocket.records.step_rows import KeptStates
from hocket.workers.sinks.video import VideoConfig, VideoSink
from one_ms import LENGTH, STEP_S

LIMIT = 0.05
SIZE = 224


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    repeats, episodes = (5, 10) if options.quick else (11, 20)
    figures = measure_numbers(repeats, episodes)
    if importlib.util.find_spec("metaworld") is not None:
        # Full pictures take a CPU ten times longer, and the share is that much easier to see.
        figures |= measure_encoding("full", 3, 30)
        figures |= measure_encoding("fast", repeats, 60)
    for name, value in figures.items():
        limit = "   (at most 5 %)" if name.endswith("share") else ""
        shown = f"{value:10.2%}" if name.endswith("share") else f"{value:10.3f}"
        print(f"{name:28}{shown}{limit}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(any(value > LIMIT for name, value in figures.items() if name.endswith("share")))


def measure_numbers(repeats: int, episodes: int) -> dict[str, float]:
    """Share of a 1 ms step that goes into keeping its numbers and the simulator's state."""
    costs: dict[str, list[float]] = {"none": [], "numbers": []}
    evaluate("numbers", 1)  # what is imported once is not a cost of a step
    for _ in range(repeats):
        for record, found in costs.items():
            found.append(evaluate(record, episodes))
    none, numbers = (statistics.median(costs[record]) for record in ("none", "numbers"))
    return {
        "plain_ms_per_step": none * 1e3,
        "recorded_ms_per_step": numbers * 1e3,
        "recording_share": (numbers - none) / STEP_S,
    }


def evaluate(record: str, episodes: int) -> float:
    """CPU seconds per step of a whole run, its folder and ledger included."""
    with tempfile.TemporaryDirectory() as place:
        began = time.process_time()
        report = hocket.evaluate(
            env="one_ms:make",
            policy=Still(),
            episodes=episodes,
            lanes=1,
            out=Path(place) / "run",
            record=record,
            video="none",
        )
        spent = time.process_time() - began
    assert report.throughput.env_steps == episodes * LENGTH
    return spent / (episodes * LENGTH)


class Still:
    """Answers with chunks of sixteen zeros."""

    spec = hocket.PolicySpec(chunk_length=16, action_size=4, batch_invariant=True)

    def infer(self, batch: hocket.Batch) -> Any:
        return np.zeros((batch.size, 16, 4), np.float32)

    def close(self) -> None: ...


def measure_encoding(render: str, repeats: int, frames: int) -> dict[str, float]:
    """Share of rendering that encoding adds, of one camera of MetaWorld's."""
    from hocket.adapters.envs.metaworld import MetaWorld

    suite = MetaWorld("push", MetaWorld.Config(size=SIZE, render=render))  # type: ignore[arg-type]
    states = kept_states()[:frames]
    env = suite.make("push-v3")
    env.reset(seed=0)
    costs: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats):
        for encodes, found in costs.items():
            found.append(show(env, states, encodes=encodes) / len(states))
    env.close()
    bare, encoded = (statistics.median(costs[encodes]) for encodes in (False, True))
    return {
        f"{render}_render_ms": bare * 1e3,
        f"{render}_encode_ms": (encoded - bare) * 1e3,
        f"{render}_encoding_share": (encoded - bare) / bare,
    }


def kept_states() -> Any:
    """Of one episode of the expert's, as a run keeps them."""
    with tempfile.TemporaryDirectory() as place:
        report = hocket.evaluate(
            env="metaworld:push",
            policy="metaworld-expert",
            episodes=1,
            lanes=2,
            out=Path(place) / "run",
            video="none",
            env_config={"max_steps": 80},
        )
        return KeptStates(Path(place) / "run").load(report.episodes[0])


def show(env: Any, states: Any, *, encodes: bool) -> float:
    with tempfile.TemporaryDirectory() as place:
        start = AttemptStart(
            trial=Trial(suite="metaworld", task="push-v3", seed=0),
            attempt=0,
            task=TaskInfo(name="push-v3", control_rate=80.0),
            prompt="",
            folder=place,
            record={"video": "all", "restored": True},
        )
        began = time.process_time()
        track = VideoSink("", VideoConfig()).open(start) if encodes else None
        for step, state in enumerate(states):
            env.set_state(state)
            observation = env.observe()
            if track is not None:
                track.step(record_of(step, observation))
        if track is not None:
            assert track.seal(Outcome.SUCCESS)
        return time.process_time() - began


def record_of(step: int, observation: dict[str, Any]) -> StepRecord:
    return StepRecord(
        step=step,
        action=None,
        reward=0.0,
        terminated=False,
        truncated=False,
        success=None,
        chunk=-1,
        age=0,
        observation=observation,
        state=None,
    )


if __name__ == "__main__":
    main()
