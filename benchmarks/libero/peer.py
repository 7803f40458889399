"""LeRobot's side of evaluation.py, run by an interpreter that has LeRobot and LIBERO.

python peer.py save FOLDER                 a random ACT policy
python peer.py rollout FOLDER TASK STEPS   LeRobot's own loop; prints one JSON object
python peer.py times FOLDER TASK STEPS     what a step, two frames and inferences cost
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from others import Others

# hocket is not installed where LeRobot is.
sys.path.append(str(Path(__file__).parents[2] / "src"))

LANES, SIZE, EXECUTED = 4, 128, 16
GOAL = slice(2, 5)
"""Where a state of the env has the position that the controller is sent to."""
KEYS = {"image": "observation/image", "wrist_image": "observation/wrist_image"}


class LeRobotsView(gymnasium.Env[Any, Any]):
    """The very env that hocket runs, with observations as LeRobot's loop wants them."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, task: str, steps: int) -> None:
        from hocket.adapters.envs.libero import Libero

        suite = Libero(task, Libero.Config(size=SIZE))
        self._env = suite.make(task)
        self.task = task
        self.task_description = suite.tasks()[0].prompt
        self._max_episode_steps = steps
        image = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Dict(dict.fromkeys(KEYS, image)),
                "agent_pos": spaces.Box(-np.inf, np.inf, (8,), np.float64),
            }
        )
        self.action_space = self._env.action_space
        self._steps = 0
        self._after_first: list[float] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen, _ = self._env.reset(seed=seed)
        self._steps = 0
        return self._view(seen), {"is_success": False}

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = self._env.step(action)
        self._steps += 1
        if self._steps == EXECUTED:
            self._after_first = self._goal()
        return self._view(seen), reward, terminated, truncated, {"is_success": info["success"]}

    def _view(self, seen: Any) -> dict[str, Any]:
        pixels = {name: seen[key] for name, key in KEYS.items()}
        return {"pixels": pixels, "agent_pos": seen["observation/state"]}

    def goals(self) -> list[list[float]]:
        """Where the hand was sent, after the first chunk and at the end: as hocket records it."""
        return [self._after_first, self._goal()]

    def _goal(self) -> list[float]:
        return [float(x) for x in self._env.get_state()[GOAL]]


def make(task: str, steps: int) -> Any:
    return lambda: LeRobotsView(task, steps)


def save(folder: str) -> None:
    from hocket.adapters.policies.lerobot.folder import mend_torchvision

    mend_torchvision()
    import torch
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    torch.manual_seed(0)
    image = PolicyFeature(type=FeatureType.VISUAL, shape=(3, SIZE, SIZE))
    config = ACTConfig(
        input_features={
            **{f"observation.images.{name}": image for name in KEYS},
            "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(8,)),
        },
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(7,))},
        chunk_size=50,
        n_action_steps=EXECUTED,
        pretrained_backbone_weights=None,
        device="cpu",
        push_to_hub=False,
    )
    ACTPolicy(config).save_pretrained(folder)
    one = {"mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0}
    sizes = {"observation.state": (8,), "action": (7,)}
    sizes.update({f"observation.images.{name}": (3, 1, 1) for name in KEYS})
    stats = {
        key: {name: torch.full(size, value) for name, value in one.items()}
        for key, size in sizes.items()
    }
    for part in make_pre_post_processors(config, dataset_stats=stats):
        part.save_pretrained(folder)


def rollout(folder: str, task: str, steps: int) -> dict[str, Any]:
    from hocket.adapters.policies.lerobot.folder import mend_torchvision

    envs = gymnasium.vector.AsyncVectorEnv(
        [make(task, steps) for _ in range(LANES)], context="forkserver", shared_memory=True
    )
    mend_torchvision()
    import torch
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.scripts import lerobot_eval

    torch.set_num_threads(1)
    config = PreTrainedConfig.from_pretrained(folder)
    policy = get_policy_class(config.type).from_pretrained(folder, config=config)
    before, after = make_pre_post_processors(config, pretrained_path=folder)
    nothing: Any = PolicyProcessorPipeline(steps=[])
    # LeRobot 0.4.4 looks at the first env of a SyncVectorEnv for what the task is called.
    envs.envs = [types.SimpleNamespace(task=task, task_description=task)]
    # Builds, compiles and warms up, as hocket's first run does.
    envs.reset(seed=[100 + lane for lane in range(LANES)])
    for _ in range(2):
        envs.step(np.zeros((LANES, 7), np.float32))
    seen = lerobot_eval.preprocess_observation(envs.reset(seed=[100] * LANES)[0])
    with torch.inference_mode():
        policy.select_action(before(lerobot_eval.add_envs_task(envs, seen)))
    others = Others()
    began = time.perf_counter()
    done = lerobot_eval.rollout(
        envs, policy, nothing, nothing, before, after, seeds=list(range(LANES))
    )
    seconds = time.perf_counter() - began
    share = others.share()
    result = {
        "seconds": seconds,
        "env_steps": int(done["action"].shape[0] * done["action"].shape[1]),
        "returns": [float(x) for x in done["reward"].sum(dim=1)],
        "goals": [list(goals) for goals in envs.call("goals")],
        "others": share,
    }
    envs.close(terminate=True)
    return result


def times(folder: str, task: str, steps: int) -> dict[str, Any]:
    """CPU seconds of each part of the work, from one trial of the benchmark, played alone: means,
    since a policy's own actions make some steps dearer than others."""
    from hocket.core import plugins
    from hocket.core.data import Batch, Row, Trial

    env = LeRobotsView(task, steps)._env
    env.reset(seed=100)  # builds, and compiles shaders
    policy = plugins.build("policies", f"lerobot:{folder}", {"device": "cpu", "threads": 1})
    row = Row(
        trial=Trial(suite="s", task="t", seed=0),
        attempt=0,
        chunk=0,
        noise_seed=0,
        prompt="",
        session="",
    )

    def infer(seen: dict[str, Any], size: int) -> Any:
        arrays = {key: np.stack([value] * size) for key, value in seen.items()}
        return policy.infer(Batch(arrays=arrays, rows=(row,) * size)).values[0]

    sizes = (1, 2, LANES)
    seen = env.observe()
    for size in sizes:
        infer(seen, size)
    spent: dict[str, list[float]] = {name: [] for name in ("reset", "step", "look")}
    inferred: dict[int, list[float]] = {size: [] for size in sizes}
    spent["reset"].append(_timed(lambda: env.reset(seed=0)))
    for start in range(0, steps, EXECUTED):
        spent["look"].append(_timed(env.observe))
        seen = env.observe()
        for size in sizes:
            inferred[size].append(_timed(lambda seen=seen, size=size: infer(seen, size)))
        for action in infer(seen, 1)[: min(EXECUTED, steps - start)]:
            spent["step"].append(_timed(lambda action=action: env.advance(action)))
    answer: dict[str, Any] = {f"{name}_s": _mean(some) for name, some in spent.items()}
    # The first observation is a part of the reset.
    answer["reset_s"] -= answer["look_s"]
    answer["infer_s"] = {size: _mean(some) for size, some in inferred.items()}
    return answer


def _mean(seconds: list[float]) -> float:
    return sum(seconds) / len(seconds)


def _timed(act: Any) -> float:
    """CPU seconds of all threads, which other processes on the machine hardly change."""
    began = time.process_time()
    act()
    return time.process_time() - began


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        verb, arguments = sys.argv[1], sys.argv[2:]
        if verb == "save":
            answer: Any = save(*arguments)
        elif verb == "times":
            answer = times(arguments[0], arguments[1], int(arguments[2]))
        else:
            answer = rollout(arguments[0], arguments[1], int(arguments[2]))
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)
