"""vla-eval's own orchestrator beside hocket: LIBERO episodes with a policy of the same cost.

    python benchmarks/peers/vla_eval.py [--episodes 40] [--shards 8 16] [--lanes 16] [--policy 5+2B]
        [--steps 197] [--replan 10]

The policy answers a batch of B after 5 + 2B milliseconds with small moves, in vla-eval's model
server (its batching, its chunk buffer) and in hocket. On both sides the same tasks and starts of
libero_spatial run for --steps steps with two cameras of 256 px. vla-eval's shards are processes
that share its queue, as its command starts them without containers. Timed are whole runs, with the
start of every process, so that a short one tells of starts more than of work. What is said of
2,000 episodes of 197 steps is that rate and no more: an extrapolation.

Needs `hocket venv libero vla-eval`, torch here, and LIBERO's data by HOCKET_LIBERO_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SUITE, ACTIONS = "libero_spatial", 16


def cost_of(policy: str) -> tuple[float, float]:
    base, row = policy.removesuffix("B").split("+")
    return float(base) / 1e3, float(row) / 1e3


def serve(policy: str, replan: str, largest: str) -> None:
    """A model server of vla-eval's; prints its address, and ends with its standard input."""
    from vla_eval.api import serve_background
    from vla_eval.model_servers.predict import PredictModelServer

    base, row = cost_of(policy)
    chance = np.random.default_rng(0)

    class Costly(PredictModelServer):
        def predict_batch(self, obs_batch: Any, ctx_batch: Any) -> list[Any]:
            time.sleep(base + row * len(obs_batch))
            drawn = chance.uniform(-0.3, 0.3, (len(obs_batch), int(replan), 7))
            return [{"actions": one} for one in drawn.astype(np.float32)]

    server = Costly(chunk_size=int(replan), max_batch_size=int(largest))
    with serve_background(server) as handle:
        sys.stdout.write(f"{handle.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


def shard(url: str, number: str, count: str, episodes: str, steps: str, out: str) -> None:
    """One of vla-eval's shards; prints how long its episodes took, all together."""
    import anyio
    from vla_eval.orchestrator import Orchestrator

    show_data(Path(out), number)
    tasks = min(10, int(episodes))
    entry = {
        "benchmark": "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark",
        "episodes_per_task": -(-int(episodes) // tasks),
        "max_tasks": tasks,
        "max_steps": int(steps),
        "params": {"suite": SUITE, "send_wrist_image": True, "send_state": True},
    }
    config = {"server": {"url": url}, "output_dir": out, "benchmarks": [entry], "render": "gpu"}
    found = Orchestrator(config, shard_id=int(number), num_shards=int(count), eval_id="peer")
    anyio.run(found.run)


def show_data(out: Path, number: str) -> None:
    """Let LIBERO find its files, and its start states, which here are numpy's."""
    data, place = Path(os.environ["HOCKET_LIBERO_DATA"]), out / f"config-{number}"
    place.mkdir()
    keys = {"benchmark_root": "", "init_states": "", "datasets": "datasets"}
    keys |= {"bddl_files": "bddl_files", "assets": "assets"}
    lines = [f"{key}: {data / part}\n" for key, part in keys.items()]
    (place / "config.yaml").write_text("".join(lines))
    os.environ["LIBERO_CONFIG_PATH"] = str(place)
    import libero.libero
    from libero.libero import benchmark

    libero.libero._assets_path_cache = str(data / "assets")
    states = np.load(data / "init_states.npz")

    def starts(self: Any, i: int) -> Any:
        return states[f"{SUITE}/{self.get_task(i).name}"]

    benchmark.Benchmark.get_task_init_states = starts


def theirs(flags: argparse.Namespace, python: str, shards: int) -> tuple[float, int]:
    """Seconds of wall time, and episodes that were recorded as ended without an error."""
    with tempfile.TemporaryDirectory() as out:
        words = [python, __file__]
        serving = subprocess.Popen(
            [*words, "serve", flags.policy, str(flags.replan), str(shards)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert serving.stdin is not None
        assert serving.stdout is not None
        url = serving.stdout.readline().strip()
        began = time.perf_counter()
        rest = [str(shards), str(flags.episodes), str(flags.steps), out]
        log = Path(out, "log")
        with log.open("w") as file:
            running = [
                subprocess.Popen([*words, "shard", url, str(n), *rest], stdout=file, stderr=file)
                for n in range(shards)
            ]
            codes = [each.wait() for each in running]
        seconds = time.perf_counter() - began
        serving.stdin.close()
        serving.wait()
        if any(codes):
            raise SystemExit(log.read_text()[-3000:])
        return seconds, _recorded(Path(out))


def _recorded(out: Path) -> int:
    import sqlite3
    from contextlib import closing

    (file,) = out.rglob("*.sqlite")
    with closing(sqlite3.connect(file)) as kept:
        rows = kept.execute("SELECT status FROM episode_results").fetchall()
    return sum(status != "error" for (status,) in rows)


def ours(flags: argparse.Namespace) -> tuple[float, int]:
    sys.path.insert(0, str(ROOT / "benchmarks" / "libero"))
    import headline
    import hocket

    tasks = min(10, flags.episodes)
    names = headline.cut_lengths.SUITES[SUITE][:tasks]
    began = time.perf_counter()
    report = hocket.evaluate(
        env=[f"libero:{name}" for name in names],
        env_python=str(ROOT / "venvs" / "libero" / "bin" / "python"),
        env_config={"start_scheme": "vla-eval"},
        policy=headline.Costly(flags.policy, flags.replan, flags.lanes),
        episodes=-(-flags.episodes // tasks),
        max_steps=flags.steps,
        lanes=flags.lanes,
        video="none",
    )
    return time.perf_counter() - began, report.overall.n


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--shards", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--policy", default="5+2B")
    parser.add_argument("--steps", type=int, default=197)
    parser.add_argument("--replan", type=int, default=10)
    flags = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from support.interpreters import with_packages_of

    with tempfile.TemporaryDirectory() as folder:
        python = with_packages_of(Path(folder) / "venv", "libero", "vla-eval")
        found = {f"vla-eval, {n} shards": theirs(flags, python, n) for n in flags.shards}
    found[f"hocket, {flags.lanes} lanes"] = ours(flags)
    for name, (seconds, count) in found.items():
        rate = count * flags.steps / seconds
        sys.stdout.write(
            f"{name:20} {count} episodes of {flags.steps} steps in {seconds:.0f} s, {rate:.0f} "
            f"steps/s; 2,000 of 197 steps at that rate: {394_000 / rate / 60:.0f} min\n"
        )
    sys.stdout.write(json.dumps({name: list(each) for name, each in found.items()}) + "\n")
    return 0


if __name__ == "__main__":
    kinds = {"serve": serve, "shard": shard}
    if sys.argv[1:2] and sys.argv[1] in kinds:
        del sys.path[0]  # this file is called as their package is
        kinds[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
