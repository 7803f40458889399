"""Physics without cameras against EnvPool: HalfCheetah-v5 in episodes of 64 steps, which EnvPool
has in C++, and hocket runs as gymnasium's Python.

    python -m venv FOLDER
    FOLDER/bin/pip install envpool==1.2.5
    python benchmarks/peers/envpool_sync.py --peer-python FOLDER/bin/python [--docs]

EnvPool draws its own starts, so all episodes start alike, and each has actions of its own. Its
MetaWorld is not run: its starts can neither be set nor read.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cheetah import ACTIONS, CHUNK, ENV, STEPS, swing
from comparison import Comparison, Stopwatch, outcome, run_hocket


def ours(options: argparse.Namespace) -> dict[str, Any]:
    import hocket

    class Swing:
        spec = hocket.PolicySpec(chunk_length=CHUNK, action_size=ACTIONS, batch_invariant=True)

        def infer(self, batch: Any) -> Any:
            seen = batch.arrays["observation/state"]
            rows = [(row.trial.seed, row.chunk) for row in batch.rows]
            return swing(seen, *np.array(rows).T)

        def close(self) -> None: ...

    sys.path.insert(0, str(Path(__file__).parent))
    return run_hocket(
        env="cheetah:make", policy=Swing(), episodes=options.trials, lanes=options.lanes
    )


def theirs(options: argparse.Namespace) -> dict[str, Any]:
    import envpool

    setup = {key: value for key, value in ENV.items() if key != "id"}
    lanes = options.lanes
    envs = envpool.make(
        ENV["id"], env_type="gymnasium", num_envs=lanes, num_threads=os.cpu_count(), **setup
    )
    watch, returns, steps = Stopwatch(), [0.0] * options.trials, [0] * options.trials
    for first in range(0, options.trials, lanes):
        seen, _ = envs.reset()
        watch.start()
        episodes = np.arange(first, first + lanes)
        for step in range(STEPS):
            if step % CHUNK == 0:
                chunk = swing(seen, episodes, np.full(lanes, step // CHUNK))
            seen, rewards, _, _, _ = envs.step(chunk[:, step % CHUNK])
            for lane, episode in enumerate(episodes):
                if episode < options.trials:
                    returns[episode] += float(rewards[lane])
                    steps[episode] += 1
    watch.stop()
    envs.close()
    return outcome(watch, returns, steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--lanes", type=int, default=8)
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"  # on both sides, in all processes
    Comparison(
        script=Path(__file__),
        what=f"HalfCheetah-v5, {STEPS} steps, {CHUNK} actions of each chunk",
        peer="EnvPool 1.2.5",
        sides={"hocket": ours, "peer": theirs},
        why_unequal=": another build of MuJoCo, and rewards of single precision",
    ).main(parser)
    return 0


if __name__ == "__main__":
    sys.exit(main())
