"""A benchmark of vla-eval's kind that an old Python runs too, with faults on demand."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy as np
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.specs import DimSpec

ODD = {"nan": float("nan"), "text": "yes", "list": [True], "none": None, "object": object()}


class Old(StepBenchmark):
    """A point that drifts; it succeeds where it ends to the right."""

    def __init__(self, odd: str = "", fault: str = "", fault_at: int = 3, marks: str = "") -> None:
        super().__init__()
        self.odd, self.fault, self.fault_at, self.marks = odd, fault, fault_at, marks

    def get_tasks(self) -> list[dict[str, Any]]:
        return [
            {"name": f"go {way}", "way": np.float64(sign)}
            for way, sign in (("right", 1.0), ("left", -1.0))
        ]

    def get_metadata(self) -> dict[str, Any]:
        return {"max_steps": 9, "max_episodes_per_task": 50}

    def get_action_spec(self) -> dict[str, Any]:
        return {"move": DimSpec("move", 2, "raw", (-1.0, 1.0))}

    def get_observation_spec(self) -> dict[str, Any]:
        return {}

    def reset(self, task: dict[str, Any]) -> Any:
        self.place = np.random.uniform(-1, 1, 2) + task["episode_idx"] + random.random()
        self.steps = self.looks = 0
        return self.place

    def step(self, action: dict[str, Any]) -> StepResult:
        self.steps += 1
        if self.fault and self.steps == self.fault_at and self._is_first():
            if self.fault == "kill":
                os.kill(os.getpid(), 9)
            elif self.fault == "hang":
                time.sleep(10**6)
            elif self.fault == "raise":
                raise KeyError("the table")
        self.place = (
            self.place + np.asarray(action["actions"], np.float64) + np.random.normal(0, 1, 2)
        )
        return StepResult(
            obs=self.place, reward=float(self.place[0]), done=self.steps == 9, info={}
        )

    def _is_first(self) -> bool:
        """True once for each file of marks, so that a second attempt goes well."""
        try:
            os.close(os.open(self.marks, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def make_obs(self, raw_obs: Any, task: dict[str, Any]) -> dict[str, Any]:
        self.looks += 1
        picture = np.full((4, 6, 3), int(abs(raw_obs[0]) * 10) % 256, np.uint8)
        states = {"place": raw_obs, "looks": [self.looks], "name": "text", "ragged": [[1], [1, 2]]}
        return {"images": {"front": picture}, **states, "task_description": task["name"] + "!"}

    def get_step_result(self, step_result: StepResult) -> dict[str, Any]:
        if self.odd == "missing":
            return {"score": 1.0}
        success = ODD.get(self.odd, np.bool_(step_result.obs[0] > 0))
        return {"success": success, "far": np.float32(step_result.obs[0]), "steps": self.steps}

    def get_hold_action(self, last_action: Any) -> Any:
        return {"actions": np.zeros(2) if last_action is None else last_action["actions"] / 2}
