"""`hocket lerobot-eval` against LeRobot's own: the same numbers, and CPU from command to exit.

    python benchmarks/peers/lerobot_eval.py metaworld [--episodes 3] [--repeats 1] [LeRobot's flags]

One of `pusht`, `aloha`, `metaworld`, `libero`, with a small ACT of random weights, 10 actions of
each chunk, one lane beside a batch of one, films included on both sides. Flags of LeRobot's own,
such as --env.episode_length, are given to both. The two are started cold,
in turn, with the same flags. Successes, sums and highest rewards of all episodes are compared, and
seconds of CPU of all processes.

Needs `hocket venv lerobot`; LIBERO's data by HOCKET_LIBERO_DATA.
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

ROOT = Path(__file__).parents[2]
LEROBOT = ROOT / "venvs" / "lerobot" / "bin"
CAMERA, CAMERAS = "observation.image", "observation.images."
TASKS: dict[str, list[str]] = {
    "pusht": [],
    "aloha": [],
    "metaworld": ["--env.task=drawer-open-v3"],
    "libero": ["--env.task=libero_spatial", "--env.task_ids=[0]"],
}
SHAPES: dict[str, dict[str, Any]] = {
    "pusht": dict(cameras=[CAMERA], size=(96, 96), states=2, moves=2, high=512.0),
    "aloha": dict(cameras=[f"{CAMERAS}top"], size=(480, 640), states=14, moves=14),
    "metaworld": dict(cameras=[CAMERA], size=(480, 480), states=4, moves=4),
    "libero": dict(
        cameras=[f"{CAMERAS}image", f"{CAMERAS}image2"], size=(360, 360), states=8, moves=7
    ),
}
WANTED = {"metaworld": 5.0, "libero": 3.5}
THEIRS = """
import os, sys
if "LIBERO_ASSETS" in os.environ:  # else they are downloaded
    import libero.libero
    libero.libero._assets_path_cache = os.environ["LIBERO_ASSETS"]
from lerobot.scripts.lerobot_eval import main
main()
"""
"""LeRobot's command, shown where LIBERO's assets are."""


def save(folder: str, env: str, seed: str, size: str) -> None:
    """A small ACT that reads and gives what the env has, in pictures of another `size` than the
    env's own where that is not 0. Needs LeRobot."""
    import torch
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.factory import (
        get_policy_class,
        make_policy_config,
        make_pre_post_processors,
    )

    torch.manual_seed(int(seed))
    shape = SHAPES[env]
    high, low = shape.get("high", 1.0), 0.0 if "high" in shape else -1.0
    height, width = (int(size), int(size)) if int(size) else shape["size"]
    image = PolicyFeature(type=FeatureType.VISUAL, shape=(3, height, width))
    config = make_policy_config(
        "act",
        input_features={
            **dict.fromkeys(shape["cameras"], image),
            "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(shape["states"],)),
        },
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(shape["moves"],))},
        **dict(device="cpu", push_to_hub=False, chunk_size=20, n_action_steps=20, dim_model=32),
        **dict(n_heads=2, dim_feedforward=64, n_encoder_layers=1, n_vae_encoder_layers=1),
        pretrained_backbone_weights=None,
    )
    get_policy_class("act")(config).save_pretrained(folder)

    def spread(count: int) -> dict[str, Any]:
        middle, width = (high + low) / 2, (high - low) / 4
        return {"mean": torch.full((count,), middle), "std": torch.full((count,), width)}

    half = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.3)}
    stats = dict.fromkeys(shape["cameras"], half)
    stats |= {"observation.state": spread(shape["states"]), "action": spread(shape["moves"])}
    for processor in make_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(folder)


def lay_out_libero(data: str, folder: str) -> None:
    """LIBERO's data as LeRobot reads it: start states as torch's files. Needs torch."""
    import numpy as np
    import torch
    import yaml

    root, place = Path(data), Path(folder)
    keys = {"benchmark_root": root, "bddl_files": root / "bddl_files", "assets": root / "assets"}
    keys |= {"datasets": root / "datasets", "init_states": place / "init_files"}
    plain = {key: str(path) for key, path in keys.items()}
    (place / "config.yaml").write_text(yaml.safe_dump(plain))
    archive = np.load(root / "init_states.npz")
    for name in archive.files:
        path = place / "init_files" / f"{name}.pruned_init"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(archive[name], path)


def timed(words: list[str], log: Path) -> tuple[float, float]:
    """Seconds of CPU and of wall time."""
    before, began = os.times(), time.perf_counter()
    with log.open("w") as file:
        done = subprocess.run(words, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(f"{words[:3]} ended with {done.returncode}: {log.read_text()[-3000:]}")
    after = os.times()
    cpu = after.children_user + after.children_system
    return cpu - before.children_user - before.children_system, time.perf_counter() - began


def differences(theirs: Path, ours: Path) -> dict[str, float]:
    """The largest difference of any episode, by what differs."""
    found: dict[str, float] = {}
    rows = [json.loads((out / "eval_info.json").read_text())["per_task"] for out in (theirs, ours)]
    for one, other in zip(*rows, strict=True):
        if (one["task_group"], one["task_id"]) != (other["task_group"], other["task_id"]):
            raise SystemExit(f"Tasks are called otherwise: {one}, {other}")
        for key in ("successes", "sum_rewards", "max_rewards"):
            pairs = zip(one["metrics"][key], other["metrics"][key], strict=True)
            found[key] = max(found.get(key, 0.0), *(abs(a - b) for a, b in pairs))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", choices=TASKS)
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--size", type=int, default=0, help="LIBERO's pictures, not 360 px")
    options, more = parser.parse_known_args()
    python, is_equal, spent = str(LEROBOT / "python"), True, [0.0, 0.0]
    os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = "egl"
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        words = ["save", name, options.env, str(options.seed), str(options.size)]
        subprocess.run([python, __file__, *words], check=True)
        if options.env == "libero":
            data = os.environ.pop("HOCKET_LIBERO_DATA")
            subprocess.run([python, __file__, "lay-out-libero", data, name], check=True)
            os.environ |= {"LIBERO_CONFIG_PATH": name, "LIBERO_ASSETS": str(Path(data) / "assets")}
        flags = [f"--policy.path={place}", "--policy.n_action_steps=10", "--policy.device=cpu"]
        flags += [f"--eval.n_episodes={options.episodes}", "--eval.batch_size=1"]
        flags += [f"--seed={options.seed}", f"--env.type={options.env}", *TASKS[options.env]]
        if options.size:
            for edge in ("height", "width"):
                flags.append(f"--env.observation_{edge}={options.size}")
        flags += more
        hocket = [sys.executable, "-m", "hocket", "lerobot-eval", "--python", python]
        for repeat in range(options.repeats):
            outs = [place / f"theirs-{repeat}", place / f"ours-{repeat}"]
            outs[0].mkdir()  # LeRobot makes none where it films nothing
            for i, words in enumerate(([python, "-c", THEIRS], hocket)):
                out = outs[i]
                cpu, wall = timed(
                    [*words, *flags, f"--output_dir={out}"], place / f"{out.name}.log"
                )
                spent[i] += cpu
                print(f"{('lerobot-eval', 'hocket')[i]:<12} CPU {cpu:6.1f} s  wall {wall:6.1f} s")
            found = differences(*outs)
            print("largest differences:", found, flush=True)
            is_equal &= found["successes"] == 0 and found["sum_rewards"] < 1e-6
    ratio = spent[0] / spent[1]
    wanted = WANTED.get(options.env, 1.0)
    print(f"{options.env}: {ratio:.2f} times less CPU (at least {wanted:.1f} is wanted)")
    print("every episode is the same" if is_equal else "EPISODES DIFFER")
    return int(not is_equal or ratio < wanted)


if __name__ == "__main__":
    if sys.argv[1:2] == ["save"]:
        save(*sys.argv[2:])
    elif sys.argv[1:2] == ["lay-out-libero"]:
        lay_out_libero(*sys.argv[2:])
    else:
        sys.exit(main())
