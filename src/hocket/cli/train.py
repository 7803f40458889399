"""`hocket train`."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import arg

from hocket.cli import adapters
from hocket.cli.subject import Subject, parse
from hocket.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Train(Subject):
    """Improve a policy with reinforcement learning, on the engine that evaluates: chunk-level PPO
    or GRPO, learning in turns with collecting (sync) or at the same time (async). Begins with
    `reference`, with `actor` or `flow` from scratch, with what another run saved (runs/x/best), or
    with your own class as package.module:Class."""

    NOT_CONFIG: ClassVar[frozenset[str]] = frozenset({"config", "out", "resume"})

    algo: Literal["ppo", "grpo"] = "ppo"
    """ppo learns from every episode, with a critic; grpo from groups of episodes that began in the
    same state and ended differently."""
    mode: Literal["sync", "async"] = "sync"
    """sync collects, then learns, and is reproducible from its seed; async does both at once, in
    two processes."""
    steps: int = 200_000
    """Env steps of training; evaluations are not counted."""
    minutes: Annotated[float | None, arg(metavar="M")] = None
    """Stop after this long, even with steps left."""
    stop_at: Annotated[float | None, arg(metavar="SCORE")] = None
    """Stop once an evaluation is this good: a share of successes, or a return."""
    lanes: Annotated[int | Literal["auto"], arg(metavar="N|auto")] = "auto"
    """Episodes that run at once, each in a process of its own; 1 runs in this process. auto takes
    as many as keep the cores busy."""
    batch: int = 32
    """Episodes to learn from in each update."""
    replan: Annotated[int | None, arg(metavar="K")] = None
    """Execute only the first K actions of each chunk."""
    reward: Literal["success", "env"] = "success"
    """success gives 1 at the step that ends an episode with success; env takes the env's own."""
    max_steps: Annotated[int | None, arg(metavar="N")] = None
    """End episodes after N control steps (truncated), instead of each task's own limit."""
    lr: float = 3e-4
    """Learning rate of Adam."""
    lr_end: Annotated[float | None, arg(metavar="LR")] = None
    """Where the learning rate goes, in a straight line over all steps."""
    epochs: int = 6
    """Passes over a batch."""
    minibatches: int = 4
    """Parts of a batch in each pass."""
    gamma: float = 0.995
    """Discount of one env step; a chunk of k steps discounts by its k-th power."""
    lam: float = 0.99
    """Decay of advantages over one env step."""
    clip: float = 0.2
    """How far a probability may move in an update."""
    clip_high: Annotated[float | None, arg(metavar="SHARE")] = None
    """How far it may grow; the default is clip for ppo, and 0.28 for grpo."""
    clip_value: Annotated[float | None, arg(metavar="X")] = None
    """How far a value may move in an update; off by default."""
    value_weight: float = 0.5
    """Of the critic's loss."""
    value_only: int = 1
    """First updates that train the critic alone, for ppo."""
    entropy: float = 0.0
    """Bonus for spread."""
    target_kl: Annotated[float | None, arg(metavar="KL")] = 0.2
    """End an update early when the policy has moved this far."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    ratio: Annotated[Literal["chunk", "action"] | None, arg(metavar="chunk|action")] = None
    """Compare probabilities of a chunk's executed actions together, or action by action; the
    default is the latter where the policy can tell them apart."""
    std: Annotated[float | None, arg(metavar="STD")] = None
    """Spread of actions at the start; the default is the policy's own."""
    residual: bool = False
    """Leave the policy as it is and train a correction of its actions: for policies that tell no
    probabilities, such as servers."""
    residual_scale: float = 0.2
    """How far the correction may move an action, roughly."""
    group: int = 8
    """Episodes of a group, for grpo."""
    pin_version: bool = False
    """Hold all episodes of a group to the weights that the first of them began with."""
    kl_weight: float = 0.0
    """How strongly grpo holds the policy to the one that training began with."""
    max_staleness: int = 2
    """Versions that data may be behind the weights in async mode."""
    correction: Annotated[
        Literal["none", "decoupled", "interpolated", "tis"] | None, arg(metavar="KIND")
    ] = None
    """How data of older weights is made up for: none, decoupled (probabilities at the start of the
    update, recomputed), interpolated (the same, guessed from the age of the data) or tis (truncated
    importance weights). The default is decoupled for async, none for sync."""
    truncate: float = 2.0
    """What tis cuts importance weights at."""
    segment_chunks: int = 0
    """Learn from stretches of so many chunks before an episode ends, for ppo and long episodes."""
    eval_every: int = 20_000
    """Env steps between evaluations; 0 for none."""
    eval_episodes: int = 20
    """Trials of each task in an evaluation: always the same, deterministic."""
    eval_seed: int = 0
    """Seed of the first of them; training uses others."""
    checkpoint_every: int = 20_000
    """Env steps between checkpoints."""
    tracker: Literal["none", "wandb", "trackio"] = "none"
    """Log there too; TensorBoard files are always written."""
    weights: Annotated[str, arg(metavar="FILE")] = ""
    """Begin with these weights (.safetensors) of a class of your own."""
    device: str = "cpu"
    """Where learning happens."""
    collect_device: str = "cpu"
    """Where the policy acts."""
    threads: int = 1
    """CPU threads of each process that uses torch. With one, sync mode is reproducible bit by
    bit."""
    retries: int = 2
    """Further attempts at an episode whose env crashed, hung or raised."""
    step_timeout_s: Annotated[float, arg(name="step-timeout", metavar="SECONDS")] = 60.0
    """A worker that makes no step for this long hangs, and is replaced."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The run folder; must be new or empty. The default is runs/TIME-ENV-POLICY."""
    resume: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Go on with this run from its newest checkpoint; takes no other flags."""


def run(arguments: Sequence[str]) -> int:
    """Train; 130 where it was interrupted."""
    from hocket import cli

    # Python's last collections walk through all of torch: a second of CPU after everything is
    # closed, and several on a busy machine, while Ctrl-C seems not to have been heard.
    atexit.register(gc.freeze)
    folder = adapters.scan(arguments, "--resume")
    if folder is not None:
        return _resume(Path(folder), arguments)
    parsed = parse(Train, arguments, verb="train")
    _require_extra()
    from hocket.records.run_file import new_folder
    from hocket.train.config import TrainConfig
    from hocket.train.loop import train

    config = TrainConfig.from_plain(parsed.config)
    result = train(config, new_folder(parsed.flags.out, config.env, config.policy))
    return _tell(result.run) if result.complete else cli.INTERRUPTED


def _resume(folder: Path, arguments: Sequence[str]) -> int:
    from hocket import cli

    if len([one for one in arguments if one.startswith("--")]) > 1:
        raise UsageError("--resume takes no other flags: the run has its configuration.")
    _require_extra()
    from hocket.records.run_file import load_run
    from hocket.train.config import TrainConfig
    from hocket.train.loop import train

    result = train(TrainConfig.from_plain(load_run(folder)), folder, resume=True)
    return _tell(folder) if result.complete else cli.INTERRUPTED


def _tell(folder: Path) -> int:
    from rich.console import Console

    from hocket import cli

    Console().print(
        f"Run folder: {folder}\nThe best weights: hocket eval --env ... --policy {folder}/best",
        highlight=False,
        soft_wrap=True,
    )
    return cli.OK


def _require_extra() -> None:
    from hocket.core.plugins import require_extra

    require_extra("policies", "trained")
