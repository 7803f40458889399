"""What rows that are out of step cost on Isaac Lab itself, by what is done with them.

    venvs/isaaclab/bin/python benchmarks/batched/isaac.py

64 cartpoles execute chunks of 16 actions, four one after the other. In each, some rows need a new
chunk before the others: an episode of theirs ended, at a step drawn anew. Then

    any()    all rows are inferred for as soon as one needs it, and begin anew
    hold     rows whose chunk is used up get zeros as actions until all need one
    suspend  rows whose chunk is used up wait

The policy costs nothing here, so that steps/s are the simulator's: useful steps of all rows, which
are those with an action of a chunk. Drift is how far a row is moved while it has no chunk, as the
mean of the largest change of what it sees; junk frames are recorded in such steps.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples")]

import isaac_cartpole  # noqa: E402
from hocket.adapters.envs.isaaclab import IsaacRows  # noqa: E402

ROWS, LENGTH, CHUNKS = 64, 16, 4
EVERYONE = np.ones(ROWS, np.bool_)


@dataclass
class Found:
    useful: int = 0
    inferred: int = 0
    junk: int = 0
    seconds: float = 0.0
    drift: float = 0.0


def policy(rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(-0.2, 0.2, (ROWS, LENGTH, 1)).astype(np.float32)


def seen(sim: IsaacRows) -> np.ndarray:
    return np.array(sim.observe(np.arange(ROWS))["observation/policy"])


def run(sim: IsaacRows, way: str, out_of_step: int) -> Found:
    rng, found = np.random.default_rng(0), Found()
    sim.reset(np.arange(ROWS), ["pole"] * ROWS, list(range(ROWS)))
    moved, frozen = np.zeros(ROWS), np.zeros(ROWS, np.int64)
    for _ in range(CHUNKS):
        lengths = np.full(ROWS, LENGTH)
        lengths[rng.permutation(ROWS)[:out_of_step]] = rng.integers(1, LENGTH, out_of_step)
        chunks, left = policy(rng), LENGTH
        found.inferred += ROWS
        began = time.process_time()
        at_end = seen(sim)
        for step in range(LENGTH):
            acts = lengths > step
            if way == "any()":
                if step and (lengths == step).any():
                    chunks, left = policy(rng), LENGTH
                    found.inferred += ROWS
                sim.step(chunks[:, LENGTH - left], EVERYONE)
                left -= 1
                found.useful += ROWS
                continue
            sim.step(
                np.where(acts[:, None], chunks[:, step], 0.0), EVERYONE if way == "hold" else acts
            )
            found.useful += int(acts.sum())
            if step + 1 in lengths:
                at_end[lengths == step + 1] = seen(sim)[lengths == step + 1]
        found.seconds += time.process_time() - began
        if way == "any()":
            continue
        frozen += LENGTH - lengths
        moved = np.maximum(moved, np.abs(seen(sim) - at_end).max(axis=1))
        if way == "hold":
            found.junk += int((LENGTH - lengths).sum())
    found.drift = float(moved[frozen > 0].mean()) if (frozen > 0).any() else 0.0
    return found


def main() -> None:
    sim = IsaacRows(isaac_cartpole.make(ROWS), "pole", "success")
    print("| out of step | way | inferences a chunk | drift | junk frames | useful steps/CPU s |")
    print("|---|---|---|---|---|---|")
    for count in (1, 4, 16, 64):
        for way in ("any()", "hold", "suspend"):
            found = run(sim, way, count)
            each = found.inferred / (ROWS * CHUNKS)
            junk = f"{found.junk / (ROWS * CHUNKS * LENGTH):.1%}"
            speed = f"{found.useful / found.seconds:,.0f}"
            print(f"| {count} | {way} | {each:.1f} | {found.drift:.3g} | {junk} | {speed} |")


if __name__ == "__main__":
    main()
