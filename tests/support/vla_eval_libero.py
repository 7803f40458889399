"""Plays LIBERO as vla-eval's class, by its own loop or as an env of ours, in an interpreter that
has both packages and torch.

    python vla_eval_libero.py own|ours DATA OUT TASK EPISODE [EPISODE ...]

DATA has LIBERO's data, with start states as an .npz. Each episode is written as OUT/EPISODE.npz.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 20
PARAMS = {"suite": "libero_object", "send_state": True, "send_wrist_image": True}


def lay_out(data: Path, folder: Path) -> None:
    """Make LIBERO find its data, with start states in the files that it reads."""
    import torch

    with np.load(data / "init_states.npz") as archive:
        for name in archive.files:
            path = folder / f"{name}.pruned_init"
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(archive[name], path)
    places = {"benchmark_root": data, "bddl_files": data / "bddl_files", "assets": data / "assets"}
    places |= {"init_states": folder, "datasets": folder}
    lines = [f"{key}: {value}\n" for key, value in places.items()]
    (folder / "config.yaml").write_text("".join(lines))
    import os

    os.environ["LIBERO_CONFIG_PATH"] = str(folder)
    import libero.libero

    libero.libero._assets_path_cache = str(data / "assets")


def actions(episode: int) -> Any:
    drawn = np.random.default_rng(episode).uniform(-1, 1, (STEPS, 7))
    return drawn.astype(np.float32)


def flat(seen: dict[str, Any]) -> dict[str, Any]:
    images = seen.get("images", {})
    return {k: v for k, v in {**seen, **images}.items() if isinstance(v, np.ndarray)}


async def own(task: int, episode: int) -> list[dict[str, Any]]:
    """What vla-eval's loop sends a model server: an observation before each step."""
    from vla_eval.benchmarks.libero.benchmark import LIBEROBenchmark

    LIBEROBenchmark.configure_render("cpu")
    benchmark = LIBEROBenchmark(**PARAMS)  # type: ignore[arg-type]
    await benchmark.start_episode({**benchmark.get_tasks()[task], "episode_idx": episode})
    seen = [flat(await benchmark.get_observation())]
    for action in actions(episode):
        await benchmark.apply_action({"actions": action})
        if await benchmark.is_done():
            break
        seen.append(flat(await benchmark.get_observation()))
    return seen


def ours(env: Any, episode: int) -> list[dict[str, Any]]:
    seen = [flat(env.reset(seed=episode)[0])]
    for action in actions(episode):
        observation, _, is_over, _, _ = env.step(action)
        if is_over:
            break
        seen.append(flat(observation))
    return seen


def main() -> None:
    kind, data, out, task, *episodes = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(data), Path(folder))
        if kind == "ours":
            from hocket.adapters.envs.vla_eval import VlaEvalBenchmark

            config = VlaEvalBenchmark.Config(params=json.dumps(PARAMS), graphics="cpu")
            suite = VlaEvalBenchmark("libero", config)
            env = suite.make(suite.tasks()[int(task)].name)
        for episode in map(int, episodes):
            seen = ours(env, episode) if kind == "ours" else asyncio.run(own(int(task), episode))
            rows = {key: np.stack([one[key] for one in seen]) for key in seen[0]}
            np.savez(Path(out) / f"{episode}.npz", **rows)


if __name__ == "__main__":
    main()
