"""A benchmark of vla-eval's own kind, run by their harness in their interpreter: it succeeds where
the action names the step and what the picture shows.

    python vla_eval_bench.py URL
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from vla_eval.api import run
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.specs import RAW


class Naming(StepBenchmark):
    def get_tasks(self) -> list[dict[str, Any]]:
        return [{"name": f"colour {colour}", "colour": colour} for colour in (20, 200)]

    def get_action_spec(self) -> dict[str, Any]:
        return {"raw": RAW}

    def get_observation_spec(self) -> dict[str, Any]:
        return {"raw": RAW}

    def get_metadata(self) -> dict[str, Any]:
        return {"max_steps": 12}

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self.params = params

    def reset(self, task: dict[str, Any]) -> Any:
        self.steps, self.is_right = 0, True
        self.colour = task["colour"]
        return self.steps

    def step(self, action: dict[str, Any]) -> StepResult:
        # The chunk is of the step at which it was asked for: every third one.
        wanted = [self.steps, self.colour]
        self.is_right &= np.asarray(action["actions"]).tolist() == wanted
        self.steps += 1
        return StepResult(obs=self.steps, reward=0.0, done=self.steps == 12, info={})

    def make_obs(self, raw_obs: Any, task: dict[str, Any]) -> dict[str, Any]:
        picture = np.full((6, 8, 3), self.colour, np.uint8)
        picture[0, 0] = (1, 2, 3)
        return {
            "images": {"agentview": picture},
            "state": np.array([raw_obs], np.float32),
            "task_description": task["name"],
        }

    def get_step_result(self, step_result: StepResult) -> dict[str, Any]:
        return {"success": bool(self.is_right and step_result.done), "params": len(self.params)}


if __name__ == "__main__":
    config = {
        "server": {"url": sys.argv[1]},
        "benchmarks": [{"benchmark": "vla_eval_bench:Naming", "episodes_per_task": 3}],
    }
    found = run(config, no_save=True, docker=False)
    sys.stdout.write(json.dumps(found, default=str) + "\n")
