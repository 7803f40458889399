"""A training run from its configuration to its end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import torch

from hocket.adapters.policies.simple import ZeroPolicy
from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.core.data import ArraySpec, EnvSpec, Trial
from hocket.engine.batches import BatchConfig
from hocket.engine.chunk_rules import make_rule
from hocket.engine.loop import Engine, EngineConfig
from hocket.errors import SpecMismatchError, UsageError
from hocket.records import run_file as run_config
from hocket.records.folder import RunFolder
from hocket.results.live import LiveStatus
from hocket.runs.assembly import Assembly
from hocket.runs.probe import probe, retried
from hocket.train.algorithms.ranks import Ranks, local_device
from hocket.train.algorithms.rollout import group_of
from hocket.train.collect import plan
from hocket.train.collect.policy import CollectingPolicy, Holding
from hocket.train.config import TrainConfig
from hocket.train.learner import checkpoint
from hocket.train.learner.process import InProcess, LearnerLink, Remote
from hocket.train.log import Display, Log, find_tracker
from hocket.train.networks.building import (
    Description,
    describe,
    make_network,
    require_trainable,
)
from hocket.train.networks.contract import BASE, Shapes
from hocket.train.trainer import Parts, Trainer
from hocket.workers.fleet import Fleet, FleetConfig

_SYNC_BATCH = 16
"""Rows of a synchronous run's batches: a fixed shape, whatever the lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run came to."""

    run: Path
    env_steps: int
    best: float | None
    """Success (or return) of the best evaluation; None without evaluations."""
    complete: bool


def train(
    config: TrainConfig,
    run: Path,
    *,
    resume: bool = False,
    readers: Sequence[Reader] = (),
    say: TextIO | None = sys.stderr,
) -> Trained:
    """Train in the folder `run`; with `resume`, go on from its newest checkpoint.

    The folder of a new run is made once everything that it names was found to work together.
    """
    torch.set_num_threads(config.threads)
    require_trainable(config)
    find_tracker(config.tracker)
    asked = config
    config = replace(
        config,
        device=local_device(config.device),
        collect_device=local_device(config.collect_device),
    )
    ranks = Ranks.from_torchrun(config.device)
    if config.mode == "async" and ranks.size > 1:
        raise UsageError("Several ranks learn in synchronous mode: leave out --mode async.")
    with contextlib.ExitStack() as stack:
        stack.callback(ranks.close)
        start = checkpoint.latest(run) if resume else None
        state = None if start is None else checkpoint.read_table(start / checkpoint.STATE)
        wall_s = 0.0 if state is None else state["wall_s"]
        display = Display(say if ranks.is_first else None, total_steps=config.steps, wall_s=wall_s)
        stack.callback(display.close)
        assembly = Assembly(config, config.lanes)
        base = _base(config, assembly)
        if base is not None:
            stack.callback(base.close)
        tasks, shapes = _look(config, assembly, base)
        description = describe(config, shapes, start)
        if config.lanes == "auto":
            first = _policy(config, description, base)
            config = replace(config, lanes=_auto_lanes(config, assembly, tasks[0], first))
        policy = _policy(config, description, base, start=start, max_batch=_max_batch(config))
        if ranks.is_first:
            stack.enter_context(RunFolder.at(run).lock())
            run_config.save_run(run, asked.to_plain(), about=run_config.about_this_run())
        log = Log(run if ranks.is_first else None, config, state)
        stack.callback(log.close)
        worker = assembly.worker(policy.spec, config.lane_count)
        settings = FleetConfig(
            lanes=config.lane_count,
            step_timeout_s=config.step_timeout_s,
            start_timeout_s=config.start_timeout_s,
        )
        fleet = stack.enter_context(Fleet(assembly.runtime(), worker, settings))
        link: LearnerLink
        if config.mode == "async":
            link = Remote(config, description, run, wake=fleet.wake, resume=start)
        else:
            link = InProcess(config, description, run, ranks=ranks, resume=start)
        stack.callback(link.close)
        policy.block = link.block
        parts = Parts(
            run=run,
            policy=policy,
            description=description,
            link=link,
            log=log,
            display=display,
            ranks=ranks,
        )
        trainer = Trainer(config, tasks, parts, restored=state)
        if ranks.is_first:
            live = LiveStatus(run)
            stack.callback(live.close)
            live.follow(fleet.arrays)
            readers = (*readers, live)
        _run(config, assembly, fleet, policy, trainer, readers)
        if not trainer.is_complete and config.mode == "sync":
            link.save(trainer.counters())
        return Trained(
            run=run,
            env_steps=trainer.total_steps,
            best=trainer.best,
            complete=trainer.is_complete,
        )


def _policy(
    config: TrainConfig,
    description: Description,
    base: Policy | None,
    *,
    start: Path | None = None,
    max_batch: int = 64,
) -> CollectingPolicy:
    return CollectingPolicy(
        make_network(config, description, start),
        description.shapes,
        Holding(is_deterministic=plan.is_evaluation, held_by=_held_by(config)),
        max_batch=max_batch,
        replan=config.replan,
        device=config.collect_device,
        base=base,
    )


def _run(
    config: TrainConfig,
    assembly: Assembly,
    fleet: Fleet,
    policy: CollectingPolicy,
    trainer: Trainer,
    readers: Sequence[Reader],
) -> None:
    lanes = config.lane_count
    inference = assembly.inference(policy)
    keeping = BatchConfig(pad=config.mode == "sync", keep_observations=True)
    with contextlib.closing(inference):
        engine = Engine(
            fleet=fleet,
            inference=inference,
            batches=assembly.batches(policy, inference, lanes, keeping),
            make_rule=make_rule(policy.spec.replan, None),
            config=EngineConfig(
                retries=config.retries, max_steps=config.max_steps, final_observation=True
            ),
            readers=(trainer, *readers),
        )
        trainer.stop = engine.stop
        trainer.begin()
        if not trainer.is_complete:
            engine.run(trainer.trials, planned=(), cores=assembly.cores(lanes))


def _look(
    config: TrainConfig, assembly: Assembly, base: Policy | None
) -> tuple[list[plan.Task], Shapes]:
    """The tasks, and what the first one's env is: all must be alike."""
    assembly.require_envs()
    tasks = [(suite, info.name) for suite, infos in assembly.tasks().items() for info in infos]
    cameras: tuple[str, ...] | None = None if config.policy_config.get("images") else ()
    if base is not None:
        cameras = base.spec.cameras
    looker: Policy = ZeroPolicy("", ZeroPolicy.Config())
    if base is not None and not base.spec.chunk_length:
        # A stock server says how long its chunks are only by answering.
        looker = base
    worker = replace(assembly.worker(), cameras=cameras)
    trial = Trial(suite=tasks[0][0], task=tasks[0][1], seed=config.eval_seed)
    seen = retried(lambda: probe(assembly.runtime(), worker, looker, trial, replan=1))
    spec: EnvSpec = seen.spec
    if spec.action.kind != "box":
        raise SpecMismatchError(
            f"Task {spec.task.name!r} has discrete actions; training is of continuous ones."
        )
    observations = dict(spec.observations)
    if base is not None:
        shape = (base.spec.chunk_length or seen.chunk_length, spec.action.size)
        observations[BASE] = ArraySpec(shape=shape, dtype="float32")
    shapes = Shapes(
        observations=observations,
        action_size=spec.action.size,
        tasks=tuple(task for _, task in tasks),
        cameras=spec.cameras,
    )
    return tasks, shapes


def _auto_lanes(
    config: TrainConfig, assembly: Assembly, task: plan.Task, policy: CollectingPolicy
) -> int:
    """As many lanes as keep the cores busy, by the cost of one chunk; never more than a batch has
    episodes. In synchronous mode at most as many as its fixed shape holds."""
    trial = Trial(suite=task[0], task=task[1], seed=config.eval_seed)
    lanes = assembly.count_lanes(policy, trial, config.batch)
    is_fixed = config.mode == "sync" and not assembly.is_batched
    return min(lanes, _SYNC_BATCH) if is_fixed else lanes


def _base(config: TrainConfig, assembly: Assembly) -> Policy | None:
    return assembly.policy() if config.residual else None


def _held_by(config: TrainConfig) -> Callable[[Trial], Hashable | None]:
    if not (config.algo == "grpo" and config.pin_version):
        return plan.holder_of
    return lambda trial: plan.holder_of(trial) or group_of(trial)


def _max_batch(config: TrainConfig) -> int:
    """In synchronous mode batches are padded to this: a fixed shape, whatever the lanes."""
    is_fixed = config.mode == "sync" and config.lane_count <= _SYNC_BATCH
    return _SYNC_BATCH if is_fixed else max(64, config.lane_count)
