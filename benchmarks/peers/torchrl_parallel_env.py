"""Cameras against TorchRL's ParallelEnv in lockstep: MetaWorld pick-place, one 224 px camera,
chunks of 16 actions; the env and policy of `engine/cameras.py`, by TorchRL's GymWrapper.

    python -m venv FOLDER
    FOLDER/bin/pip install torch==2.13.0 torchrl==0.14.1 -e '.[metaworld]'
    python benchmarks/peers/torchrl_parallel_env.py --peer-python FOLDER/bin/python [--docs]

TorchRL's inference server is not run: it asks a policy for each step's action, not for chunks.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
import cameras
from async_vector_env import ours
from comparison import Comparison, Stopwatch, outcome


class Telling(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Says whether the episode has ended where TorchRL can see it, for it drops infos."""

    def __init__(self) -> None:
        super().__init__(cameras.make_env())
        told = {"ended": gymnasium.spaces.Box(0, 1, (1,), np.uint8)}
        kept = {"observation/state", cameras.CAMERA}
        spaces = self.env.observation_space.spaces.items()  # type: ignore[attr-defined]
        self.observation_space = gymnasium.spaces.Dict(
            {key.replace("/", "_"): space for key, space in spaces if key in kept} | told
        )
        self._kept = kept

    def observation(self, observation: Any) -> Any:
        ended = np.array([self.env.get_wrapper_attr("_last") is not None], np.uint8)
        seen = {key.replace("/", "_"): observation[key] for key in self._kept}
        return {**seen, "ended": ended}


class Lanes:
    """A ParallelEnv with the methods of a vector env that `cameras.lockstep` calls."""

    def __init__(self, lanes: int) -> None:
        from torchrl.envs import GymWrapper, ParallelEnv

        self.num_envs = lanes
        self._envs = ParallelEnv(lanes, lambda: GymWrapper(Telling()), mp_start_method="spawn")
        self._seen: Any = None

    def reset(self, seed: list[int]) -> tuple[dict[str, Any], dict[str, Any]]:
        kwargs = [{"seed": number} for number in seed]
        self._seen = self._envs.reset(list_of_kwargs=kwargs)
        return self._told(self._seen), {}

    def step(self, actions: Any) -> tuple[Any, Any, None, None, dict[str, Any]]:
        import torch

        self._seen["action"] = torch.as_tensor(actions).to(self._envs.action_spec.dtype)
        after = self._envs.step(self._seen)["next"]
        self._seen = after.exclude("reward")
        rewards, ended = after["reward"].numpy()[:, 0], after["ended"].numpy()[:, 0]
        return self._told(after), rewards, None, None, {"ended": ended > 0}

    def close(self) -> None:
        self._envs.close()

    def _told(self, found: Any) -> dict[str, Any]:
        keys = ("observation/state", cameras.CAMERA)
        return {key: found[key.replace("/", "_")].numpy() for key in keys}


def theirs(options: argparse.Namespace) -> dict[str, Any]:
    envs, watch = Lanes(options.lanes), Stopwatch()
    try:
        returns, steps = cameras.lockstep(envs, options.trials, watch.start)
        watch.stop()
    finally:
        envs.close()
    return outcome(watch, returns, steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--lanes", type=int, default=4)
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"  # on both sides, in all processes
    Comparison(
        script=Path(__file__),
        what="MetaWorld pick-place, 224 px, 16 actions of each chunk",
        peer="ParallelEnv of TorchRL 0.14.1",
        sides={"hocket": ours, "peer": theirs},
        why_unequal=": TorchRL's rewards are of single precision",
    ).main(parser)
    return 0


if __name__ == "__main__":
    sys.exit(main())
