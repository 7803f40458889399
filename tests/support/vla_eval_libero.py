"""Plays LIBERO as vla-eval's class, by its own loop or as an env of ours, or natively, in an
interpreter that has both packages and torch.

    python vla_eval_libero.py own|ours|native DATA OUT SUITE TASK EPISODE [EPISODE ...]

DATA has LIBERO's data, with start states as an .npz; TASK is a number. Each episode is written as
OUT/EPISODE.npz, a row for each observation. `own` plays each as the first one of its process; of
the others all but the last are left after two steps.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 20
PARAMS = {"send_state": True, "send_wrist_image": True, "quat_no_antipodal": True}
NATIVE = {
    "observation/image": "agentview",
    "observation/wrist_image": "wrist",
    "observation/state": "states",
}


def lay_out(data: Path, folder: Path, suite: str) -> None:
    """Make LIBERO find its data, with start states in the files that it reads."""
    import torch

    with np.load(data / "init_states.npz") as archive:
        for name in archive.files:
            if not name.startswith(f"{suite}/"):
                continue
            path = folder / f"{name}.pruned_init"
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(archive[name], path)
    places = {"benchmark_root": data, "bddl_files": data / "bddl_files", "assets": data / "assets"}
    places |= {"init_states": folder, "datasets": folder}
    lines = [f"{key}: {value}\n" for key, value in places.items()]
    (folder / "config.yaml").write_text("".join(lines))
    os.environ["LIBERO_CONFIG_PATH"] = str(folder)
    import libero.libero

    libero.libero._assets_path_cache = str(data / "assets")


def actions(episode: int) -> Any:
    """Moves, and a gripper that is open or closed: vla-eval knows nothing in between."""
    drawn = np.random.default_rng(episode).uniform(-1, 1, (STEPS, 7))
    drawn[:, -1] = np.where(drawn[:, -1] < 0, -1.0, 1.0)
    return drawn.astype(np.float32)


def flat(seen: dict[str, Any]) -> dict[str, Any]:
    images = seen.get("images", {})
    return {k: v for k, v in {**seen, **images}.items() if isinstance(v, np.ndarray)}


async def own(suite: str, task: int, episode: int) -> list[dict[str, Any]]:
    """What vla-eval's loop sends a model server: an observation before each step."""
    from vla_eval.benchmarks.libero.benchmark import LIBEROBenchmark

    LIBEROBenchmark.configure_render("cpu")
    benchmark = LIBEROBenchmark(suite=suite, **PARAMS)  # type: ignore[arg-type]
    await benchmark.start_episode({**benchmark.get_tasks()[task], "episode_idx": episode})
    seen = [flat(await benchmark.get_observation())]
    for action in actions(episode):
        await benchmark.apply_action({"actions": action})
        if await benchmark.is_done():
            break
        seen.append(flat(await benchmark.get_observation()))
    return seen


def play(env: Any, episode: int, steps: int) -> list[dict[str, Any]]:
    seen = [flat(env.reset(seed=episode)[0])]
    for action in actions(episode)[:steps]:
        observation, _, is_over, _, _ = env.step(action)
        if is_over:
            break
        seen.append(flat(observation))
    return seen


def make_ours(suite: str, task: int) -> Any:
    from hocket.adapters.envs.vla_eval import VlaEvalBenchmark

    params = json.dumps({"suite": suite, **PARAMS})
    found = VlaEvalBenchmark("libero", VlaEvalBenchmark.Config(params=params, graphics="cpu"))
    return found.make(found.tasks()[task].name)


def make_native(suite: str, task: int, data: str) -> Any:
    from hocket.adapters.envs.libero import Libero

    os.environ["HOCKET_LIBERO_DATA"] = data
    config = Libero.Config(start_scheme="vla-eval", gl="osmesa")
    config.prefer()
    found = Libero(suite.removeprefix("libero_"), config)
    return found.make(found.tasks()[task].name)


def main() -> None:
    kind, data, out, suite, number, *episodes = sys.argv[1:]
    task = int(number)
    with tempfile.TemporaryDirectory() as folder:
        if kind == "native":
            env = make_native(suite, task, data)
        else:
            lay_out(Path(data), Path(folder), suite)
            env = make_ours(suite, task) if kind == "ours" else None
        for episode in map(int, episodes):
            if kind == "own":
                seen = asyncio.run(own(suite, task, episode))
            else:
                seen = play(env, episode, STEPS if episode == int(episodes[-1]) else 2)
            rows = {key: np.stack([one[key] for one in seen]) for key in seen[0]}
            named = {NATIVE.get(key, key): value for key, value in rows.items()}
            np.savez(Path(out) / f"{episode}.npz", **named)


if __name__ == "__main__":
    main()
