"""`hocket train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from hocket.cli import INTERRUPTED, OK
from hocket.cli.flags.flag import scan
from hocket.cli.flags.parse import OF_ALGORITHMS, FileFlags, knobs_of, parse_alone, parse_run
from hocket.cli.flags.plan import RunFlags, RunPlan, machines_of, make_readers
from hocket.cli.watch import shown
from hocket.core.plugins import require_extra
from hocket.errors import UsageError
from hocket.records.run_file import load_run, new_folder
from hocket.train.config import TrainConfig

_OF_COLLECTING = ("reward", "segment_chunks", "starts", "curriculum")
"""Settings that only algorithms read which learn from their own episodes."""
_OF_RATIOS = (
    *("epochs", "clip", "clip_high", "entropy", "target_kl", "ratio"),
    "correction",
)
"""Settings that only algorithms read which compare probabilities."""
_OF_EVALUATIONS = ("stop_at", "eval_episodes", "eval_seed", "eval_env_config")
"""Settings that only evaluations read, and what they decide."""
_SPELLED = {"eval_env_config": "eval.env.*"}


@dataclass(frozen=True, kw_only=True)
class Train(RunFlags, FileFlags):
    """Train a policy on the engine that evaluates: by cloning recorded episodes (--algo bc --data
    FOLDER), or by reinforcement learning, chunk-level PPO, GRPO or RLPD, learning in turns with
    collecting (sync) or at the same time (async). Begins with
    `reference`, with `actor` or `flow` from scratch, with what another run saved (runs/x/best), or
    with your own class as package.module:Class."""

    policy: Annotated[str, arg(metavar="NAME")]
    """What learns: actor or flow (networks of hocket's own, from scratch), reference (bundled), a
    folder that hocket train wrote (runs/x/best), torch:FILE, lerobot:FOLDER or
    lerobot:USER/REPO[@REVISION] (a checkpoint), or your own class as package.module:Class. With
    --residual any policy that hocket eval takes, such as openpi://HOST:PORT, and with --steer one
    that takes noise."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The run folder; must be new or empty. The default is runs/TIME-ENV-POLICY."""
    resume: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Go on with this run from its newest checkpoint; takes no other flags but --watch, --reader
    and those of --machines."""
    dry_run: bool = False
    """Print what would be run, and build no simulator."""


@dataclass(frozen=True, kw_only=True)
class ResumeTraining(RunFlags):
    """Go on with a training run from its newest checkpoint: it has its configuration."""

    resume: Annotated[Path, arg(metavar="FOLDER")]
    """The run folder."""
    allow_changes: bool = False
    """Go on though code, packages, weights or other files are not what the folder says they were;
    run.yaml then names what differs."""
    dry_run: bool = False
    """Print what would be run, and build no simulator."""


def run(arguments: Sequence[str]) -> int:
    """Train; 130 where it was interrupted."""
    plan = plan_of(arguments)
    from hocket.results.terminal import Console

    if plan.is_dry:
        for line in plan.describe():
            Console().print(line, highlight=False, soft_wrap=True)
        return OK
    require_extra("policies", "trained")
    from hocket.train.learner.checkpoint import BEST, latest
    from hocket.train.loop import train

    (config,) = plan.runs.values()
    _require_device("--device", config.device)
    if plan.machines is None:
        _require_device("--collect-device", config.collect_device)
    folder = plan.out
    if folder is None or not plan.is_resumed:
        folder = new_folder(plan.out, config.env, config.policy)
    with shown(folder, wanted=plan.is_watched), machines_of(plan.machines) as machines:
        trained = train(
            config,
            folder,
            resume=plan.is_resumed,
            allow_changes=plan.allows_changes,
            readers=lambda about: make_readers(plan.readers, about),
            machines=machines,
        )
    if not trained.complete:
        return INTERRUPTED
    found = folder / BEST
    told = f"The best weights: hocket eval --env ... --policy {found}"
    if not found.is_dir():
        told = f"The last weights: hocket eval --env ... --policy {latest(folder)}"
    Console().print(f"Run folder: {folder}\n{told}", highlight=False, soft_wrap=True)
    return OK


def _require_device(flag: str, name: str) -> None:
    """Raise where this machine has no such device."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as exc:
        why = str(exc).partition("\n")[0].rstrip(".")
        raise UsageError(f"{flag} {name} is no device that can be used here: {why}.") from exc


def plan_of(arguments: Sequence[str]) -> RunPlan[TrainConfig]:
    """What the arguments ask for."""
    if scan(arguments, "--delay") is not None:
        raise UsageError(
            "hocket train has no --delay: what is learnt from is collected while the world waits. "
            "Evaluate what was trained with hocket eval --delay."
        )
    if scan(arguments, "--resume") is None:
        knobs = knobs_of(TrainConfig, without=("policy_devices",))
        parsed = parse_run(Train, knobs, arguments, verb="train", evaluates_apart=True)
        return plan_training(parsed.flags, parsed.config)
    why = "the run has its configuration"
    flags = parse_alone(ResumeTraining, arguments, verb="train", with_="--resume", why=why)
    plain = load_run(flags.resume)
    if "episodes" in plain:
        raise UsageError(
            f"{flags.resume} is a run of hocket eval: go on with hocket resume {flags.resume}."
        )
    config = TrainConfig.from_plain(plain)
    return RunPlan.of(
        flags,
        {"": config},
        out=flags.resume,
        is_resumed=True,
        allows_changes=flags.allow_changes,
        is_dry=flags.dry_run,
    )


def plan_training(flags: Train, config: Mapping[str, Any]) -> RunPlan[TrainConfig]:
    """The plan of flags and the configuration beside them."""
    settled = TrainConfig.from_plain(config)
    _refuse_idle(settled)
    return RunPlan.of(flags, {"": settled}, out=flags.out, is_dry=flags.dry_run)


def _algorithms_by_flag() -> dict[str, list[str]]:
    """Which algorithms read each of the flags that some do not."""
    found: dict[str, list[str]] = {}
    for one, names in OF_ALGORITHMS.items():
        for name in names:
            found.setdefault(name, []).append(one)
    return found


def _refuse_idle(config: TrainConfig) -> None:
    """Raise where a setting was set that nothing reads."""
    owners: list[tuple[str, bool, Sequence[str]]] = [
        *(
            (f"--algo {' or '.join(algos)}", config.algo in algos, [name])
            for name, algos in _algorithms_by_flag().items()
        ),
        ("--algo ppo, grpo or rlpd", not config.is_cloning, _OF_COLLECTING),
        ("--algo ppo or grpo", config.algo in ("ppo", "grpo"), _OF_RATIOS),
        ("an algorithm that collects", config.algo != "bc", ["batch"]),
        ("--residual", config.residual, ["residual_scale"]),
        ("--data", bool(config.data), ["data_episodes"]),
        (
            "--data with --algo ppo or grpo",
            bool(config.data) and config.algo in ("ppo", "grpo"),
            ["bc_weight"],
        ),
        ("--mode async", config.mode == "async", ["max_staleness"]),
        ("--eval-every above 0", config.eval_every > 0, _OF_EVALUATIONS),
    ]
    fields = TrainConfig.__dataclass_fields__
    for owner, is_there, names in owners:
        for name in names:
            # {} is the default of a group of settings.
            if not is_there and getattr(config, name) not in (fields[name].default, {}):
                flag = _SPELLED.get(name, name.replace("_", "-"))
                raise UsageError(f"--{flag} belongs to {owner}, and has no effect here.")
