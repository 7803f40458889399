"""The other sides of cold_start.py, run by an interpreter that has LIBERO and LeRobot.

python cold_peers.py save FOLDER                         a random ACT for LeRobot's LIBERO env
python cold_peers.py lerobot FOLDER EPISODES STEPS OUT   LeRobot's own lerobot-eval
python cold_peers.py vla-eval SITE EPISODES STEPS OUT    vla-eval; SITE is where it is installed

Both run as they are, but for LIBERO's data, which they are shown where HOCKET_LIBERO_DATA is, and
for the number of steps, which lerobot-eval has no setting for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

DATA = Path(os.environ["HOCKET_LIBERO_DATA"])
SUITE = "libero_spatial"


def show_data(out: Path) -> None:
    """Let LIBERO find its files, and its start states, which here are numpy's."""
    keys = {"benchmark_root": "", "init_states": "", "datasets": "datasets"}
    keys |= {"bddl_files": "bddl_files", "assets": "assets"}
    (out / "config.yaml").write_text(yaml.safe_dump({k: str(DATA / v) for k, v in keys.items()}))
    os.environ["LIBERO_CONFIG_PATH"] = str(out)
    import libero.libero
    from libero.libero import benchmark

    libero.libero._assets_path_cache = str(DATA / "assets")
    states = np.load(DATA / "init_states.npz")

    def starts(self: Any, i: int) -> Any:
        return states[f"{SUITE}/{self.get_task(i).name}"]

    benchmark.Benchmark.get_task_init_states = starts


def lerobot(folder: str, episodes: str, steps: str, out: Path) -> None:
    from lerobot.envs import libero as envs
    from lerobot.scripts.lerobot_eval import main

    envs.TASK_SUITE_MAX_STEPS[SUITE] = int(steps)
    if hasattr(envs, "get_task_init_states"):
        envs.get_task_init_states = lambda suite, i: suite.get_task_init_states(i)
    sys.argv = ["lerobot-eval", f"--policy.path={folder}", "--policy.device=cpu"]
    sys.argv += ["--env.type=libero", f"--env.task={SUITE}", "--env.task_ids=[0]"]
    sys.argv += [f"--eval.n_episodes={episodes}", f"--eval.batch_size={episodes}"]
    sys.argv += [f"--output_dir={out / 'lerobot'}", "--env.observation_height=256"]
    sys.argv += ["--env.observation_width=256"]
    main()


def vla_eval(site: str, episodes: str, steps: str, out: Path) -> None:
    sys.path.append(site)
    from vla_eval.api import evaluate
    from vla_eval.model_servers.predict import PredictModelServer

    class Still(PredictModelServer):
        """Answers with no motion, at no cost."""

        def predict(self, obs: Any, ctx: Any) -> Any:
            return {"actions": np.zeros(7, np.float32)}

    entry = {
        "benchmark": "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark",
        "episodes_per_task": int(episodes),
        "max_tasks": 1,
        "max_steps": int(steps),
        "params": {"suite": SUITE, "send_wrist_image": True, "send_state": True},
    }
    config = {"output_dir": str(out / "vla-eval"), "benchmarks": [entry]}
    print(evaluate(Still(), config, docker=False))


def save(folder: str) -> None:
    import peer

    peer.SIZE, peer.KEYS = 256, dict.fromkeys(("image", "image2"), "")
    peer.save(folder)


if __name__ == "__main__":
    which, subject, *rest = sys.argv[1:]
    if which == "save":
        save(subject)
    else:
        count, length, where = rest
        show_data(Path(where))
        {"lerobot": lerobot, "vla-eval": vla_eval}[which](subject, count, length, Path(where))
