"""A benchmark that finds its tasks with a planner, as RoboTwin's does; it counts how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vla_eval_bench import Naming


class RoboTwinBenchmark(Naming):
    print: str

    def __init__(self, count: str, code: str = "a") -> None:
        super().__init__()
        self.count, self.code = count, code

    def _init_robotwin(self) -> None:
        self.print = f"code {self.code}"

    def fingerprint(self) -> str:
        return self.print

    def get_tasks(self) -> list[dict[str, Any]]:
        with Path(self.count).open("a") as file:
            file.write("planned\n")
        return [{"name": "grab", "colour": 20, "seed": seed} for seed in (100003, 100007)]
