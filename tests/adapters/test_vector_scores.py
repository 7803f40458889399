"""What a vector env tells as a score is one, or the run ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Env, spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import hocket
from hocket.errors import OutcomeError


class Scored(Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Box(-1, 1, (1,))
    score: Any = 0.5

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, False, {"score": self.score}


class Rows(SyncVectorEnv):
    def __init__(self, rows: int) -> None:
        super().__init__([Scored] * rows, autoreset_mode=AutoresetMode.DISABLED)

    def get_rows(self, rows: Any) -> Any:
        return np.zeros((len(rows), 1))

    def set_rows(self, rows: Any, states: Any) -> None: ...


def rows_told(monkeypatch: pytest.MonkeyPatch, score: Any) -> hocket.Report:
    monkeypatch.setattr(Scored, "score", score)
    return hocket.evaluate(
        env=f"vector:{__name__}:Rows",
        policy="random",
        episodes=3,
        lanes=2,
        max_steps=3,
        env_config={"score_key": "score", "success_at": 0.4},
    )


@pytest.mark.parametrize("score", [float("nan"), "0.5", 1.5])
def test_a_score_that_is_none_ends_the_run(monkeypatch: pytest.MonkeyPatch, score: Any) -> None:
    with pytest.raises(OutcomeError, match=r"info\['score'\].*no score"):
        rows_told(monkeypatch, score)


def test_scores_of_rows_decide_by_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    report = rows_told(monkeypatch, 0.5)
    assert (report.overall.rate, report.overall.progress.value) == (1.0, 0.5)
