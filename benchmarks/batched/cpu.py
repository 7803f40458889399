"""Chunks on a batched simulator whose rows fall out of step: hocket, for real, against what people
do instead, on the same trials.

64 rows, chunks of 16 actions, steps of 20 ms, inference of 200 and of 700 ms whatever the batch,
episodes of 60 to 300 steps. hocket runs as it always does, with a simulator and a policy that
sleep; the others drive the same two from a plain loop (any(), which would take a quarter of an
hour, is computed, without any overhead of its own). The third setting has a policy whose time
grows with its batch, as measured of a pi0-sized model on an H200. In the fourth a reset takes as
long as 50 steps, in which no row steps, though the limit has it hold up its own row alone.

Steps that a row is held for are not useful, and the episode's clock goes on in them; `paused` shows
what synced would be if it did not. The limit is what nobody can exceed: neither rows that get each
chunk as soon as a policy that works on it alone could give it, nor a policy that is busy all the
time with batches of the best size.

    python benchmarks/batched/cpu.py                a quarter of an hour
    python benchmarks/batched/cpu.py --simulation   the stepping rule over many settings, seconds
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from engine import roll
from hocket.core.data import Batch
from simulation import (
    SETTINGS,
    Hocket,
    Outcome,
    Setting,
    Virtual,
    any_triggered,
    held_share,
    ideal_inferences,
    limit,
    lockstep,
    paused,
    synced,
)
from sleeper import SleeperConfig, SleepingPolicy, SleepingRows

PEERS = {
    "any()": any_triggered,
    "synced, held": synced,
    "synced, paused": paused,
    "lockstep": lockstep,
}

REAL = {
    **{n: SETTINGS[n] for n in ("64 rows, 200 ms", "64 rows, 700 ms", "64 rows, 75 + 8.5 B ms")},
    "64 rows, 200 ms, resets of 50 steps": Setting(base_s=0.2, reset_s=1.0),
}


def run_hocket(setting: Setting) -> tuple[Outcome, float]:
    """The real engine; and the share of rows' time in which they stepped."""
    policy = SleepingPolicy(base_s=setting.base_s, row_s=setting.row_s, chunk=setting.chunk)
    done = roll(
        "sleeper:Sleepers",
        policy,
        rows=setting.rows,
        episodes=setting.episodes,
        config={
            "step_s": setting.step_s,
            "lengths": tuple(setting.trials()),
            "reset_s": setting.reset_s,
        },
        task="sleep",
    ).counted
    outcome = Outcome(
        seconds=done.wall_s, useful=done.steps, inferred=done.inferred, calls=done.batches
    )
    return outcome, outcome.useful * setting.step_s / setting.rows / outcome.seconds


def row(name: str, outcome: Outcome, setting: Setting, occupancy: float) -> dict[str, Any]:
    ideal = ideal_inferences(setting)
    return {
        "who": name,
        "useful_row_steps_per_s": round(outcome.rate, 1),
        "of_limit": round(outcome.rate / limit(setting), 4),
        "inferences_per_chunk": round(outcome.inferred / ideal, 3),
        "calls": outcome.calls,
        "rows_busy": round(occupancy, 3),
        "held_per_useful": round(outcome.held / outcome.useful, 3),
        "seconds": round(outcome.seconds, 2),
    }


def compare(setting: Setting, peers: Mapping[str, Any]) -> list[dict[str, Any]]:
    outcome, occupancy = run_hocket(setting)
    rows = [row("hocket", outcome, setting, occupancy)]
    for name, run in peers.items():
        began = time.perf_counter()
        if run is any_triggered:
            still = replace(setting, jitter=0.0)
            peer = run(still, Virtual(still))
        else:
            peer = run(setting, Driven(setting))
            peer = replace(peer, seconds=time.perf_counter() - began)
        busy = peer.useful * setting.step_s / setting.rows / peer.seconds
        rows.append(row(name, peer, setting, busy))
    return rows


class Driven:
    """The simulator and the policy that hocket runs, with as little around them as a loop needs."""

    def __init__(self, setting: Setting) -> None:
        config = SleeperConfig(
            step_s=setting.step_s, lengths=tuple(setting.trials()), reset_s=setting.reset_s
        )
        self._sim = SleepingRows(setting.rows, config)
        self._policy = SleepingPolicy(
            base_s=setting.base_s, row_s=setting.row_s, chunk=setting.chunk, max_batch=setting.rows
        )
        self._length = setting.chunk
        self._rows = np.arange(setting.rows)
        self._moves = np.ones(setting.rows, np.bool_)
        self._chunks = np.zeros((setting.rows, setting.chunk, 7), np.float32)

    def begin(self, rows: Sequence[int], trials: Sequence[int]) -> float:
        self._sim.reset(np.asarray(rows), ["sleep"] * len(rows), trials)
        return 0.0  # The caller looks at the clock.

    def infer(self) -> float:
        batch = Batch(arrays=self._sim.observe(self._rows), rows=(), pad=len(self._rows))
        self._chunks = self._policy.infer(batch).values
        return 0.0

    def step(self, left: Sequence[int]) -> float:
        # A row that has none left is held under its last action.
        at = np.minimum(self._length - np.asarray(left), self._length - 1)
        steps = self._sim.step(self._chunks[self._rows, at], self._moves)
        np.flatnonzero(steps.terminated | steps.truncated)
        return 0.0


def simulate(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The rule, its absence, and the others, as shares of the limit, on the mean of some runs."""
    return [
        {"setting": name, **_means([_shares(replace(setting, seed=seed)) for seed in seeds])}
        for name, setting in SETTINGS.items()
    ]


def _shares(setting: Setting) -> dict[str, float]:
    rates = {
        "hocket": Hocket(setting).run().rate,
        "never holding": Hocket(setting, holds=False).run().rate,
        **{peer: run(setting, Virtual(setting)).rate for peer, run in PEERS.items()},
    }
    return {name: rate / limit(setting) for name, rate in rates.items()}


def _means(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(fmean(run[name] for run in runs), 3) for name in runs[0]}


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    names = list(rows[0])
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
    for cells in (names, *([str(row[name]) for name in names] for row in rows)):
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulation", action="store_true")
    parser.add_argument("--episodes", type=int, default=320)
    parser.add_argument("--seeds", type=int, default=3, help="runs of the simulation to average")
    parser.add_argument("--alone", action="store_true", help="hocket without the others")
    parser.add_argument("--only", help="settings whose name has this in it")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    if args.simulation:
        results["simulation"] = simulate(range(args.seeds))
        show("Shares of the limit, in virtual time", results["simulation"])
    else:
        for name, known in REAL.items():
            if args.only and args.only not in name:
                continue
            setting = replace(known, episodes=args.episodes)
            results[name] = compare(setting, PEERS if not args.alone else {})
            show(f"{name}; limit {limit(setting):.0f} row-steps/s", results[name])
            if setting.reset_s:
                share = held_share(setting)
                print(f"One simulator that resets and steps in turns reaches about {share:.2f}.")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
