"""A training run from its configuration to its end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from hocket.adapters.policies.simple import ZeroPolicy
from hocket.core import plugins
from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.core.data import ArraySpec, EnvSpec, PolicySpec, Ref, TaskInfo, Trial
from hocket.engine.batches import BatchConfig
from hocket.engine.chunk_rules import make_rule
from hocket.engine.loop import Engine, EngineConfig
from hocket.engine.trials import TrialQueue
from hocket.errors import SpecMismatchError, UsageError
from hocket.records import run_file as run_config
from hocket.records.folder import RunFolder, temporary
from hocket.results.live import LiveStatus
from hocket.runs.assembly import Assembly
from hocket.runs.probe import probe, retried
from hocket.train.algorithms.ranks import Ranks, local_device
from hocket.train.algorithms.rollout import group_of
from hocket.train.cloner import Cloner
from hocket.train.collect import plan
from hocket.train.collect.curriculum import find_curriculum
from hocket.train.collect.policy import CollectingPolicy, Holding
from hocket.train.config import TrainConfig
from hocket.train.course import Parts
from hocket.train.data.reading import Wanted, read_data
from hocket.train.data.store import DATA, discard
from hocket.train.learner import checkpoint
from hocket.train.learner.process import InProcess, LearnerLink, Remote
from hocket.train.log import Display, Log, Reading, find_tracker
from hocket.train.networks.building import (
    Description,
    Made,
    cameras_of,
    describe,
    make_network,
    require_trainable,
)
from hocket.train.networks.contract import BASE, Shapes, bounds_of, frozen_parameters
from hocket.train.networks.memory import twin
from hocket.train.rewards import Rewards
from hocket.train.trainer import Trainer
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
    rewards = Rewards(config.reward)
    find_curriculum(config.curriculum)
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
        found = _prepare(config, start, stack)
        if ranks.is_first:
            data = None if resume else _read_data(found, run, display)
            stack.enter_context(RunFolder.at(run).lock())
            _save_start(run, asked, data, found.made)
        ranks.count(0)  # what the first rank wrote is there for all
        log = Log(run if ranks.is_first else None, found.config, state)
        stack.callback(log.close)
        fleet = stack.enter_context(_fleet(found.config, found.assembly, found.policy.spec))
        link = _learner(found, run, ranks, fleet, start)
        stack.callback(link.close)
        found.policy.block = link.block
        parts = Parts(
            run=run,
            policy=found.policy,
            description=found.description,
            link=link,
            log=log,
            display=display,
            ranks=ranks,
            rewards=rewards,
        )
        live = LiveStatus(run) if ranks.is_first else None
        if live is not None:
            stack.callback(live.close)
            readers = (*readers, live)
        rolling = _Rolling(found.config, found.assembly, fleet, found.policy, readers, live)
        return _finish(found, parts, rolling, state)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Prepared:
    """What was found to work together, before anything is written."""

    config: TrainConfig
    """With numbers for all that was left open."""
    assembly: Assembly
    tasks: Sequence[tuple[str, TaskInfo]]
    """With their suites."""
    description: Description
    made: Made
    policy: CollectingPolicy


def _prepare(config: TrainConfig, start: Path | None, stack: contextlib.ExitStack) -> _Prepared:
    """Looks at the env, and builds the network and the policy that acts with it."""
    assembly = Assembly(config, config.lanes)
    base = assembly.policy() if config.residual else None
    if base is not None:
        stack.callback(base.close)
    infos, shapes = _look(config, assembly, base)
    description = describe(config, shapes, start)
    made = make_network(config, description, start, refers=config.mode == "sync")
    policy = _policy(config, description, base, made)
    limits = [config.max_steps or info.max_steps or 0 for _, info in infos]
    config = config.settled(max(limits))
    if config.lanes == "auto":
        first = (infos[0][0], infos[0][1].name)
        config = replace(config, lanes=_auto_lanes(config, assembly, first, policy))
    policy.limit(_max_batch(config))
    return _Prepared(
        config=config,
        assembly=assembly,
        tasks=infos,
        description=description,
        made=made,
        policy=policy,
    )


def _learner(
    found: _Prepared, run: Path, ranks: Ranks, fleet: Fleet, start: Path | None
) -> LearnerLink:
    """The learner: in a process of its own, or in this one."""
    config, description = found.config, found.description
    if config.mode == "async":
        return Remote(config, description, run, made=found.made, wake=fleet.wake, resume=start)
    return InProcess(config, description, run, ranks=ranks, made=found.made, resume=start)


def _finish(
    found: _Prepared, parts: Parts, rolling: _Rolling, state: Mapping[str, Any] | None
) -> Trained:
    """Trains to the end, or until that is interrupted."""
    config, tasks = found.config, [(suite, info.name) for suite, info in found.tasks]
    trainer: Trainer | Cloner
    if config.algo == "bc":
        trainer = Cloner(config, tasks, parts, restored=state)
        trainer.run(rolling.to_the_end)
    else:
        trainer = Trainer(config, tasks, parts, restored=state)
        rolling.train(trainer)
    if not trainer.is_complete and config.mode == "sync":
        parts.link.save(trainer.counters())
    return Trained(
        run=parts.run,
        env_steps=trainer.total_steps,
        best=trainer.best,
        complete=trainer.is_complete,
    )


def _save_start(run: Path, config: TrainConfig, data: Path | None, made: Made) -> None:
    """Keep in the run's folder, which is ours, what does not change while it trains."""
    if data is not None:
        data.rename(run / DATA)
    checkpoint.save_frozen(run, frozen_parameters(made.network))
    run_config.save_run(run, config.to_plain(), about=run_config.about_this_run())


def _fleet(config: TrainConfig, assembly: Assembly, spec: PolicySpec) -> Fleet:
    """The workers for training, and for evaluations with settings of their own."""
    worker = replace(
        assembly.worker(spec, config.lane_count),
        suites={**assembly.suites, **_evaluated(config, assembly)},
        tells=config.algo != "bc",
    )
    settings = FleetConfig(
        lanes=config.lane_count,
        step_timeout_s=config.step_timeout_s,
        start_timeout_s=config.start_timeout_s,
    )
    return Fleet(assembly.runtime(), worker, settings)


def _policy(
    config: TrainConfig,
    description: Description,
    base: Policy | None,
    made: Made,
) -> CollectingPolicy:
    """The policy that acts: with the very network that was made, or with a copy of what is trained
    where a learner in this process moves that one."""
    network = made.network
    if config.mode == "sync":
        network = twin(network.to(config.device), config.collect_device)
    return CollectingPolicy(
        network,
        description.shapes,
        Holding(is_deterministic=plan.is_evaluation, held_by=_held_by(config)),
        replan=config.replan,
        device=config.collect_device,
        base=base,
        precision=config.precision,
    )


@dataclass(frozen=True, slots=True, kw_only=False)
class _Rolling:
    """Makes engines for what is run, one after another."""

    config: TrainConfig
    assembly: Assembly
    fleet: Fleet
    policy: CollectingPolicy
    readers: Sequence[Reader] = ()
    live: LiveStatus | None = None

    def train(self, trainer: Trainer) -> None:
        """Runs what a trainer plans."""
        with self._engine(trainer) as engine:
            trainer.stop = engine.stop
            trainer.begin()
            if not trainer.is_complete:
                self._run(engine, trainer.trials)

    def to_the_end(self, reader: Reader, trials: TrialQueue) -> bool:
        """Runs these trials; False where that was interrupted."""
        with self._engine(reader) as engine:
            return self._run(engine, trials)

    def _run(self, engine: Engine, trials: TrialQueue) -> bool:
        return engine.run(trials, planned=(), cores=self.assembly.cores(self.config.lane_count))

    @contextlib.contextmanager
    def _engine(self, reader: Reader) -> Iterator[Engine]:
        config, lanes = self.config, self.config.lane_count
        inference = self.assembly.inference(self.policy)
        keeping = BatchConfig(pad=config.mode == "sync", keep_observations=config.algo != "bc")
        with contextlib.closing(inference):
            engine = Engine(
                fleet=self.fleet,
                inference=inference,
                batches=self.assembly.batches(self.policy, inference, lanes, keeping),
                make_rule=make_rule(self.policy.spec.replan, None),
                config=EngineConfig(
                    retries=config.retries, max_steps=config.max_steps, final_observation=True
                ),
                readers=(reader, *self.readers),
            )
            if self.live is not None:
                self.live.follow(engine.look)
            yield engine


def _look(
    config: TrainConfig, assembly: Assembly, base: Policy | None
) -> tuple[list[tuple[str, TaskInfo]], Shapes]:
    """The tasks with their suites, and what the first one's env is: all must be alike."""
    assembly.require_envs()
    tasks = [(suite, info) for suite, infos in assembly.tasks().items() for info in infos]
    cameras = cameras_of(config) if base is None else base.spec.cameras
    looker: Policy = ZeroPolicy("", ZeroPolicy.Config())
    if base is not None and not base.spec.chunk_length:
        # A stock server says how long its chunks are only by answering.
        looker = base
    worker = replace(assembly.worker(), cameras=cameras)
    trial = Trial(suite=tasks[0][0], task=tasks[0][1].name, seed=config.eval_seed)
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
        tasks=tuple(info.name for _, info in tasks),
        cameras=spec.cameras,
        bounds=bounds_of(spec.action),
    )
    return tasks, shapes


def _read_data(found: _Prepared, run: Path, display: Display) -> Path | None:
    """Reads what the policy reads of recorded episodes, into a folder beside that of the run, which
    is made only when all is well; None where none are named."""
    config = found.config
    if not config.data:
        return None
    wanted = Wanted(
        shapes=found.description.shapes,
        tasks=[info for _, info in found.tasks],
        inputs=tuple(found.policy.spec.inputs or ()),
        first=config.data_episodes,
    )
    data = temporary(run.with_name(f"{run.name}.data"))
    discard(data)  # left by a run that was killed
    read_data(config.data, wanted, data, Reading(display))
    return data


def _evaluated(config: TrainConfig, assembly: Assembly) -> dict[str, Ref]:
    """The suites of evaluations, where these have settings of their own."""
    if not config.eval_env_config:
        return {}
    shares = plugins.share_settings("envs", config.env, config.eval_env_config)
    return {
        plan.EVALUATED + name: replace(ref, config={**ref.config, **shares[name]})
        for name, ref in assembly.suites.items()
    }


def _auto_lanes(
    config: TrainConfig, assembly: Assembly, task: plan.Task, policy: CollectingPolicy
) -> int:
    """As many lanes as keep the cores busy, by the cost of one chunk; never more than a batch has
    episodes. In synchronous mode at most as many as its fixed shape holds."""
    trial = Trial(suite=task[0], task=task[1], seed=config.eval_seed)
    lanes = assembly.count_lanes(policy, trial, config.batch_count)
    is_fixed = config.mode == "sync" and not assembly.is_batched
    return min(lanes, _SYNC_BATCH) if is_fixed else lanes


def _held_by(config: TrainConfig) -> Callable[[Trial], Hashable | None]:
    if not (config.algo == "grpo" and config.pin_version):
        return plan.holder_of
    return lambda trial: plan.holder_of(trial) or group_of(trial, config.group)


def _max_batch(config: TrainConfig) -> int:
    """In synchronous mode batches are padded to this: a fixed shape, whatever the lanes."""
    is_fixed = config.mode == "sync" and config.lane_count <= _SYNC_BATCH
    return _SYNC_BATCH if is_fixed else max(64, config.lane_count)
