"""Every flag of `hocket eval` and `hocket train` as words that somebody may write, and what a plan
says, value by value."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket.cli.flags.plan import RunPlan
from hocket.core.contracts.recorder import Followed
from hocket.runs.sites import SiteConfig

READER = f"{__name__}:Silent"
Words = tuple[str, ...]
Samples = Mapping[str, Words]


class Silent:
    """A reader of the user's own, which leaves a file beside the run to show that it was there."""

    def __init__(self, argument: str, run: Followed) -> None:
        self._mark = run.folder.with_name(f"{run.folder.name}.{argument}")

    def on(self, event: object) -> None: ...

    def close(self) -> None:
        self._mark.touch()


SITES: Samples = {
    "machines": ("--machines", "local:1"),
    "sites": ("--machines", "ray", "--sites", "2"),
    "site.lease_s": ("--machines", "local:1", "--site.lease", "20"),
    "site.mixed": ("--machines", "local:1", "--site.mixed"),
    "site.key_file": ("--machines", "listen", "--site.key-file", "key"),
    "site.python": ("--machines", "ssh:host", "--site.python", "python3.12"),
    "site.folder": ("--machines", "ssh:host", "--site.folder", "there"),
    "site.options": ("--machines", "ssh:host", "--site.options", "Port=2222"),
    "site.cpus": ("--machines", "ray", "--site.cpus", "2"),
    "site.gpus": ("--machines", "ray", "--site.gpus", "1"),
    "site.memory": ("--machines", "ray", "--site.memory", "4G"),
    "site.runtime_env": ("--machines", "ray", "--site.runtime-env", "env.yaml"),
}
FOLLOWED: Samples = {"reader": ("--reader", f"{READER}=seen"), "watch": ("--watch",)}

EVAL_BASE: Words = (
    *("--env", "support.delayed:make_holding", "--policy", "support.delayed:Continuing"),
    *("--lanes", "1", "--episodes", "1", "--video", "none", "--env.length-max", "24"),
)
EVAL: Samples = {
    **SITES,
    **FOLLOWED,
    "env": ("--env", "toy:count"),
    "protocol": ("--protocol", "mine.yaml"),
    "policy": ("--policy", "support.delayed:Waves"),
    "episodes": ("--episodes", "2"),
    "seed": ("--seed", "7"),
    "lanes": ("--lanes", "2"),
    "replan": ("--replan", "4"),
    "ensemble": ("--ensemble", "0.01"),
    "delay": ("--delay", "0,2", "--method", "naive"),
    "method": ("--method", "blocking"),
    "first_chunk": ("--first-chunk", "held", "--method", "naive", "--delay", "1"),
    "exact": ("--exact",),
    "max_steps": ("--max-steps", "15"),
    "retries": ("--retries", "1"),
    "step_timeout_s": ("--step-timeout", "50"),
    "infer_timeout_s": ("--infer-timeout", "90"),
    "worker_memory": ("--worker-memory", "3G", "--runtime", "local"),
    "recycle_after": ("--recycle-after", "1"),
    "until": ("--until", "decided", "--against", "against"),
    "against": ("--against", "against", "--until", "decided"),
    "alpha": ("--alpha", "0.1", "--until", "decided", "--against", "against"),
    "record": ("--record", "full"),
    "keep_errors": ("--keep-errors", "3"),
    "video": ("--video", "all"),
    "video_quality": ("--video-quality", "full"),
    "video_overlay": ("--video-overlay",),
    "json_episodes": ("--json-episodes",),
    "video_mb": ("--video-mb", "9"),
    "env_python": ("--env-python", sys.executable),
    "policy_python": ("--policy-python", sys.executable),
    "policy_devices": ("--policy-devices", "cpu"),
    "runtime": ("--runtime", "local"),
    "start_timeout_s": ("--start-timeout", "200"),
    "config": ("--config", "eval.yaml"),
    "arms": ("--perturb", "state:noise=0.02,action:noise=0.02"),
    "out": ("--out", "elsewhere"),
    "json": ("--json",),
    "dry_run": ("--dry-run",),
    "jobs": ("--jobs", "jobs.yaml"),
    "env_config": ("--env.length-min", "21"),
    "policy_config": ("--policy.replan", "3"),
    "runtime_config": ("--runtime", "docker:image", "--runtime.memory", "4g"),
    "rtc_config": ("--method", "rtc", "--delay", "1", "--rtc.weight", "3"),
}
EVAL_FILES = {
    "mine.yaml": "{suite: Toy, port: toy, rule: the last step, controller: none, by: us,"
    " settings: {env: [toy:count], episodes: 3}, tasks: {toy:count: {max_steps: 25}}}",
    "eval.yaml": "{env: toy:count, policy: scripted, keep_errors: 7}",
    "jobs.yaml": "{shared: {env: toy:count, policy: scripted, lanes: 1, episodes: 1, video: none},"
    " base: a, runs: {a: {}, b: {replan: 2}}}",
}

TRAIN_BASE: Words = (
    *("--env", "toy:count", "--policy", "actor", "--lanes", "1", "--env.length-max", "24"),
    *("--steps", "40", "--batch", "4", "--epochs", "1", "--eval-every", "40", "--reward", "env"),
    *("--eval-episodes", "2", "--policy.hidden", "8", "--policy.chunk-length", "4"),
)
CLONING_BASE: Words = (
    *("--env", "toy:count", "--policy", "actor", "--lanes", "1", "--env.length-max", "24"),
    *("--algo", "bc", "--data", "demos", "--steps", "40", "--eval-every", "40"),
    *("--eval-episodes", "2", "--policy.hidden", "8", "--policy.chunk-length", "4"),
)
NOT_CLONING = {
    *("mode", "batch", "reward", "bc_weight", "residual", "residual_scale", "steer"),
    *("max_staleness", "segment_chunks", "starts", "curriculum", "gamma", "lam", "clip_value"),
    *("value_weight", "critic_lr", "value_only", "epochs", "clip", "clip_high", "entropy"),
    *("target_kl", "ratio", "correction", "policy_python"),
}
"""Flags that cloning refuses: it would not read them."""
DAGGER: Words = ("--algo", "dagger", "--data", "demos")
OF_OTHERS = ("expert", "rounds", "takeover", "failures", "replays", "critics")
"""Flags of algorithms that take neither the rewards nor the epochs that TRAIN_BASE names."""
TRAIN: Samples = {
    **SITES,
    **FOLLOWED,
    "env": ("--env", "toy:steps"),
    "policy": ("--policy", "flow"),
    "algo": ("--algo", "grpo", "--group", "4"),
    "mode": ("--mode", "async"),
    "steps": ("--steps", "60"),
    "minutes": ("--minutes", "3"),
    "stop_at": ("--stop-at", "0.9"),
    "seed": ("--seed", "7"),
    "lanes": ("--lanes", "2"),
    "batch": ("--batch", "8"),
    "replan": ("--replan", "2"),
    "reward": ("--reward", "success,0.1*env"),
    "max_steps": ("--max-steps", "15"),
    "data": ("--data", "recorded"),
    "data_episodes": ("--data", "recorded", "--data-episodes", "1"),
    "bc_weight": ("--data", "recorded", "--bc-weight", "0.2"),
    "std": ("--std", "0.3"),
    "noise_at": ("--policy", "flow", "--noise-at", "one"),
    "inner": ("--policy", "flow", "--inner", "all"),
    "spread": ("--policy", "flow", "--spread", "observation"),
    "residual": ("--residual",),
    "steer": ("--steer",),
    "residual_scale": ("--residual", "--residual-scale", "0.1"),
    "adapter": ("--adapter", "lora:r=4"),
    "critic_features": ("--critic-features", "body"),
    "weights": ("--weights", "weights.safetensors"),
    "max_staleness": ("--mode", "async", "--max-staleness", "1"),
    "segment_chunks": ("--segment-chunks", "2"),
    "starts": ("--starts", "3"),
    "curriculum": ("--curriculum", "hard"),
    "eval_every": ("--eval-every", "20"),
    "eval_episodes": ("--eval-episodes", "1"),
    "eval_seed": ("--eval-seed", "5"),
    "checkpoint_every": ("--checkpoint-every", "20"),
    "device": ("--device", "cuda:7"),
    "collect_device": ("--collect-device", "cuda:7"),
    "checkpoint_activations": ("--checkpoint-activations",),
    "threads": ("--threads", "2"),
    "retries": ("--retries", "1"),
    "step_timeout_s": ("--step-timeout", "50"),
    "group": ("--algo", "grpo", "--group", "2"),
    "pin_version": ("--algo", "grpo", "--group", "2", "--pin-version"),
    "kl_weight": ("--algo", "grpo", "--group", "2", "--kl-weight", "0.1"),
    "expert": (*DAGGER, "--expert", "scripted"),
    "rounds": (*DAGGER, "--expert", "scripted", "--rounds", "2"),
    "takeover": (*DAGGER, "--expert", "scripted", "--takeover", "0.5"),
    "failures": (*DAGGER, "--expert", "scripted", "--failures", "failed"),
    "replays": ("--algo", "rlpd", "--replays", "2"),
    "critics": ("--algo", "rlpd", "--critics", "2"),
    "gamma": ("--gamma", "0.9"),
    "lam": ("--lam", "0.9"),
    "clip_value": ("--clip-value", "0.3"),
    "value_weight": ("--value-weight", "0.4"),
    "critic_lr": ("--critic-lr", "0.002"),
    "value_only": ("--value-only", "0"),
    "lr": ("--lr", "0.001"),
    "lr_end": ("--lr-end", "0.0001"),
    "epochs": ("--epochs", "2"),
    "minibatch": ("--minibatch", "8"),
    "micro_batch": ("--micro-batch", "4"),
    "precision": ("--precision", "bf16"),
    "clip": ("--clip", "0.1"),
    "clip_high": ("--clip-high", "0.3"),
    "entropy": ("--entropy", "0.01"),
    "target_kl": ("--target-kl", "0.1"),
    "max_grad_norm": ("--max-grad-norm", "0.5"),
    "ratio": ("--ratio", "chunk"),
    "correction": ("--correction", "none"),
    "env_python": ("--env-python", sys.executable),
    "policy_python": ("--residual", "--policy-python", sys.executable),
    "runtime": ("--runtime", "local"),
    "start_timeout_s": ("--start-timeout", "200"),
    "config": ("--config", "train.yaml"),
    "out": ("--out", "elsewhere"),
    "resume": ("--resume", "begun"),
    "dry_run": ("--dry-run",),
    "env_config": ("--env.length-min", "21"),
    "policy_config": ("--policy.chunk-length", "2"),
    "runtime_config": ("--runtime", "docker:image", "--runtime.memory", "4g"),
    "eval_env_config": ("--eval.env.length-max", "30"),
}
TRAIN_FILES = {"train.yaml": "{env: toy:count, policy: actor, start_timeout_s: 250.0}"}


def facts(plan: RunPlan[Any]) -> dict[str, frozenset[str]]:
    """What a plan says: under each name the values that its runs have there, or its own value."""
    found: dict[str, set[str]] = {}
    for config in plan.runs.values():
        for name, value in dataclasses.asdict(config).items():
            parts = value if isinstance(value, Mapping) and value else {"": value}
            for key, part in parts.items():
                found.setdefault(f"{name}.{key}", set()).add(repr(part))
    own = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    if plan.machines is not None:
        own |= {"machines": plan.machines.where, "sites": plan.machines.sites}
        own |= {f"site.{k}": v for k, v in dataclasses.asdict(plan.machines.site).items()}
        usual = {f"site.{k}": v for k, v in dataclasses.asdict(SiteConfig()).items()}
        own = {k: v for k, v in own.items() if v != {"sites": "auto", **usual}.get(k, ...)}
    return {
        **{name: frozenset(values) for name, values in found.items()},
        **{k: frozenset([repr(v)]) for k, v in own.items() if k not in ("runs", "base")},
    }


def changed(plan: RunPlan[Any], base: RunPlan[Any]) -> dict[str, frozenset[str]]:
    """What a plan says that another one does not."""
    before = facts(base)
    return {name: said for name, said in facts(plan).items() if before.get(name) != said}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def without(base: Sequence[str], words: Sequence[str]) -> list[str]:
    """The base flags that the words do not give anew, which all take one value."""
    pairs = zip(base[::2], base[1::2], strict=True)
    return [part for flag, value in pairs if flag not in words for part in (flag, value)]
