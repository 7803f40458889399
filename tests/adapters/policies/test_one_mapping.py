"""One mapping file serves an evaluation and a loop of the user's own."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import hocket
from hocket import ChunkReplay
from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from support.stock_openpi import StockServer

MAPPING = """
request:
  state: {from: robot.qpos, size: 2, dtype: float32}
actions: {slice: [0, 2]}
"""


class Arm(gymnasium.Env):
    """Shows its joints in a nested dict."""

    observation_space = gymnasium.spaces.Dict(
        {"robot": gymnasium.spaces.Dict({"qpos": gymnasium.spaces.Box(-9, 9, (2,), np.float32)})}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    max_steps = 4

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.qpos = np.full(2, 0.5, np.float32)
        return {"robot": {"qpos": self.qpos}}, {}

    def step(self, action: Any) -> Any:
        self.qpos = self.qpos - 0.1 * action
        return {"robot": {"qpos": self.qpos}}, 0.0, False, False, {"success": False}


def test_one_mapping_file_serves_evaluation_and_chunk_replay(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MAPPING)
    asked: list[Any] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request["state"].tolist())
        return {"actions": np.full((4, 3), 0.25, np.float32)}

    with StockServer(answer) as server:
        report = hocket.evaluate(
            env=Arm,
            policy=f"openpi://127.0.0.1:{server.port}",
            policy_config={"mapping": str(file)},
            episodes=1,
            lanes=1,
        )
        assert report.overall.errors == 0
        evaluated, asked[:] = list(asked), []
        policy = OpenPI(f"127.0.0.1:{server.port}", OpenPIConfig(mapping=str(file)))
        try:
            moves = ChunkReplay(policy).act({"robot": {"qpos": np.full((1, 2), 0.5, np.float32)}})
        finally:
            policy.close()
    assert moves.shape == (1, 2)
    assert evaluated[-1] == asked[-1] == [0.5, 0.5]
