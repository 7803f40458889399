"""Independence: the same 40 trials with 1, 4 and 16 lanes, in shuffled order, to the bit.

    python benchmarks/engine/independence.py [--env metaworld:mt10] [--policy reference]
        [--json FILE]

Outcomes, lengths and returns are compared trial by trial. Exits with 1 where any differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.run import Run

TRIALS = 40
Result = tuple[str, int, float]


def results(config: EvalConfig, order: int) -> dict[str, Result]:
    trials = Assembly(config).plan(config.seed, config.episodes)[:TRIALS]
    random.Random(order).shuffle(trials)
    with Run(config, trials) as run:
        report = run.finish()
    return {e.trial.id: (e.outcome.value, e.steps, e.total_reward) for e in report.episodes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="metaworld:mt10")
    parser.add_argument("--policy", default="reference")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[int, dict[str, Result]] = {}
    for order, lanes in enumerate((1, 4, 16)):
        config = EvalConfig(
            env=(arguments.env,), policy=arguments.policy, episodes=TRIALS, lanes=lanes
        )
        found[lanes] = results(config, order)
        wins = sum(outcome == "success" for outcome, _, _ in found[lanes].values())
        print(f"{lanes:>3} lanes: {len(found[lanes])} trials, {wins} successes")
    alone = found[1]
    different = [
        trial
        for trial in sorted(alone)
        if any(found[lanes].get(trial) != alone[trial] for lanes in found)
    ]
    distinct = len({result[2] for result in alone.values()})
    print(f"{len(alone) - len(different)} of {len(alone)} trials identical to the bit in all three")
    print(f"({distinct} different returns among them, so that a mix-up would show)")
    if arguments.json:
        arguments.json.write_text(json.dumps({"different": different, "found": found}, indent=1))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
