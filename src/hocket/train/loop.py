"""A training run from its configuration to its end."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from hocket.adapters.policies.simple import ZeroPolicy
from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Followed, Reader
from hocket.core.data import Array
from hocket.core.specs import ArraySpec, EnvSpec, TaskInfo
from hocket.engine.loop import Engine
from hocket.engine.trials import TrialQueue
from hocket.errors import SpecMismatchError, UsageError
from hocket.records import run_file as run_config
from hocket.records.folder import RunFolder
from hocket.records.program import Known
from hocket.records.provenance import this_process
from hocket.results.showing.live import LiveStatus
from hocket.runs.assembly import Assembly
from hocket.runs.probe import probe, retried
from hocket.system.durable import temporary
from hocket.train.algorithms.judging import labels
from hocket.train.algorithms.ranks import Ranks, local_device
from hocket.train.cloner import Cloner
from hocket.train.collect.curriculum import find_curriculum
from hocket.train.collect.elsewhere import Collecting, CollectsElsewhere, Sites
from hocket.train.collect.policy import CollectingPolicy
from hocket.train.collect.rolling import (
    auto_lanes,
    base_of,
    engine_plan,
    fleet_of,
    max_batch,
    policy_of,
)
from hocket.train.config import TrainConfig
from hocket.train.corrections import Corrections, require_corrections
from hocket.train.data.reading import read_data
from hocket.train.data.store import DATA, Recorded, Wanted
from hocket.train.learner import checkpoint
from hocket.train.learner.process import InProcess, LearnerLink, Remote
from hocket.train.learner.weights import PackedWeights
from hocket.train.legs import depends_on, hold, note_edits, readers_of, save_leg
from hocket.train.log import Display, Log, Reading
from hocket.train.networks.actor import FARTHEST
from hocket.train.networks.building import (
    Description,
    Made,
    cameras_of,
    describe,
    make_network,
    require_trainable,
)
from hocket.train.networks.contract import (
    BASE,
    Shapes,
    bounds_of,
    frozen_parameters,
    published_tensors,
)
from hocket.train.rewards import Rewards
from hocket.train.trainer import Trainer
from hocket.train.training_run import Parts, Roll
from hocket.workers.fleet import Fleet


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
    allow_changes: bool = False,
    readers: Callable[[Followed], Sequence[Reader]] = lambda _: (),
    say: TextIO | None = sys.stderr,
    machines: CollectsElsewhere | None = None,
) -> Trained:
    """Train in the folder `run`; with `resume`, go on from its newest checkpoint, by the program
    that it was begun with unless `allow_changes`. On `machines` sites collect, and this process
    learns and evaluates.

    The folder of a new run is made once everything that it names was found to work together.
    """
    torch.set_num_threads(config.threads)
    require_trainable(config)
    rewards = Rewards(config.reward, config.network_name)
    find_curriculum(config.curriculum)
    require_corrections(config)
    asked = config
    config = replace(
        config,
        device=local_device(config.device),
        collect_device=local_device(config.collect_device),
    )
    if machines is not None:
        _require_spreadable(config)
    ranks = Ranks.from_torchrun(config.device)
    if config.algo in ("rlpd", "dagger", "reward") and ranks.size > 1:
        raise UsageError(f"{config.algo} learns in one process: leave out torchrun.")
    if config.mode == "async" and ranks.size > 1:
        raise UsageError("Several ranks learn in synchronous mode: leave out --mode async.")
    with contextlib.ExitStack() as stack:
        stack.callback(ranks.close)
        leg = depends_on(asked) if ranks.is_first else {}
        if resume and ranks.is_first:
            hold(run, leg, allows_changes=allow_changes)
        start = checkpoint.latest(run) if resume else None
        state = None if start is None else checkpoint.read_table(start / checkpoint.STATE)
        wall_s = 0.0 if state is None else state["wall_s"]
        display = Display(say if ranks.is_first else None, total_steps=config.steps, wall_s=wall_s)
        stack.callback(display.close)
        found = _prepare(config, start, stack)
        wanted = _wanted(found, rewards)
        if ranks.is_first:
            data = None if resume else _read_data(found, run, display, wanted)
            stack.enter_context(RunFolder.at(run).lock())
            checkpoint.save_frozen(run, frozen_parameters(found.made.network))
            if data is not None:
                data.rename(run / DATA)
            if state is None:
                run_config.save_run(run, asked.to_plain(), about={**this_process(), **leg})
            else:
                save_leg(run, asked, leg, env_steps=state["env_steps"])
        ranks.count(0)  # what the first rank wrote is there for all
        following: list[Reader] = []
        if ranks.is_first:
            following = readers_of(run, found.config, state, readers, stack)
        log = Log(run if ranks.is_first else None, state, following)
        stack.callback(log.close)
        fleet = stack.enter_context(fleet_of(found.config, found.assembly, found.policy.spec))
        link = _learner(found, run, ranks, fleet, start)
        stack.callback(link.close)
        found.policy.block = link.block
        sites = None
        if machines is not None:
            sites = _sites(found, asked, machines, run, link, fleet, leg)
            stack.callback(sites.close)
            sites.start()
        parts = Parts(
            config=found.config,
            tasks=found.tasks,
            run=run,
            policy=found.policy,
            description=found.description,
            link=link,
            log=log,
            display=display,
            ranks=ranks,
            rewards=rewards,
            corrections=Corrections(found.config, run, found.tasks, found.policy, wanted)
            if config.algo == "dagger"
            else None,
            sites=sites,
        )
        live = LiveStatus(run) if ranks.is_first else None
        if live is not None:
            stack.callback(live.close)
            following.append(live)
        roll = functools.partial(_roll, found, fleet, following, live)
        trained = _finish(parts, roll, state)
        for text in note_edits(run, asked, leg) if ranks.is_first else ():
            display.announce(f"Edited while the run went on: {text}.")
        return trained


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Prepared:
    """What was found to work together, before anything is written."""

    config: TrainConfig
    """With numbers for all that was left open."""
    assembly: Assembly
    infos: Sequence[tuple[str, TaskInfo]]
    """The tasks, with their suites."""
    description: Description
    made: Made
    policy: CollectingPolicy

    @property
    def tasks(self) -> list[tuple[str, str]]:
        """Suites and names of the tasks."""
        return [(suite, info.name) for suite, info in self.infos]


def _prepare(config: TrainConfig, start: Path | None, stack: contextlib.ExitStack) -> _Prepared:
    """Look at the env, and build the network and the policy that acts with it."""
    assembly = Assembly(config, config.lanes)
    stack.callback(assembly.close)
    base = base_of(config, assembly)
    if base is not None:
        stack.callback(base.close)
    infos, shapes = _look(config, assembly, base)
    spec = None if base is None else base.spec
    description = describe(config, shapes, start, base=spec)
    made = make_network(config, description, start, refers=config.mode == "sync")
    policy = policy_of(config, description, base, made)
    limits = [config.max_steps or info.max_steps or 0 for _, info in infos]
    config = config.settled(max(limits))
    if config.lanes == "auto":
        first = (infos[0][0], infos[0][1].name)
        config = replace(config, lanes=auto_lanes(config, assembly, first, policy))
    policy.limit(max_batch(config))
    return _Prepared(
        config=config,
        assembly=assembly,
        infos=infos,
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


def _sites(
    found: _Prepared,
    asked: TrainConfig,
    machines: CollectsElsewhere,
    run: Path,
    link: LearnerLink,
    fleet: Fleet,
    leg: Known,
) -> Sites:
    """Sites that collect, each with as many lanes as suit it."""
    return machines.collect(
        Collecting(
            config=replace(asked, batch=found.config.batch, lam=found.config.lam),
            run=run,
            tasks=found.tasks,
            description=found.description,
            weights=PackedWeights(link.block, published_tensors(found.made.network)),
            wake=fleet.wake,
            learn=functools.partial(_save_about, run, asked),
            program=leg,
        )
    )


def _roll(
    found: _Prepared,
    fleet: Fleet,
    readers: Sequence[Reader],
    live: LiveStatus | None,
    reader: Reader,
    trials: TrialQueue,
    begin: Callable[[Engine], bool] = lambda _: True,
) -> bool:
    """Run these trials on an engine of their own, which tells `reader` first; False if that was
    interrupted. `begin` is given the engine before, and says whether there is work for it."""
    config, assembly, policy = found.config, found.assembly, found.policy
    plan = engine_plan(config, policy)
    with assembly.engine(policy, fleet, plan, (reader, *readers)) as engine:
        if live is not None:
            live.follow(engine.look)
        cores = assembly.cores(config.lane_count)
        return begin(engine) and engine.run(trials, planned=(), cores=cores)


def _finish(parts: Parts, roll: Roll, state: Mapping[str, Any] | None) -> Trained:
    """Train to the end, or until that is interrupted."""
    trainer = Cloner(parts, state) if parts.config.is_cloning else Trainer(parts, state)
    trainer.run(roll)
    if not trainer.is_complete and parts.config.mode == "sync":
        parts.link.save(trainer.counters())
    return Trained(
        run=parts.run,
        env_steps=trainer.total_steps,
        best=trainer.best,
        complete=trainer.is_complete,
    )


def _require_spreadable(config: TrainConfig) -> None:
    if config.mode != "async" or config.is_cloning:
        raise UsageError(
            "On several machines collecting and learning go on at once: add --mode async, with "
            "ppo or grpo."
        )
    if config.algo == "grpo" and config.pin_version:
        raise UsageError(
            "The episodes of a group may run at several sites, which are not held to one version: "
            "leave out --pin-version."
        )


def _save_about(run: Path, config: TrainConfig, sites: Mapping[str, Any]) -> None:
    told = {key: sites[key] for key in ("lanes", "sites", "differences") if key in sites}
    about = {**run_config.load_about(run), **told}
    run_config.save_run(run, config.to_plain(), about=about)


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
    trial = assembly.first_trial(config.eval_seed)
    seen = retried(
        lambda: probe(assembly.runtime(), worker, looker, trial, name=config.policy, replan=1)
    )
    spec: EnvSpec = seen.spec
    if spec.action.kind != "box":
        raise SpecMismatchError(
            f"Task {spec.task.name!r} has discrete actions; training is of continuous ones."
        )
    observations = dict(spec.observations)
    action = spec.action
    if base is not None and config.steer:
        # Its actions are rows of noise.
        size = base.spec.noise[-1]
        action = replace(
            action, size=size, low=np.full(size, -FARTHEST), high=np.full(size, FARTHEST)
        )
    elif base is not None:
        shape = (base.spec.chunk_length or seen.chunk_length, spec.action.size)
        observations[BASE] = ArraySpec(shape=shape, dtype="float32")
    shapes = Shapes(
        observations=observations,
        action_size=action.size,
        tasks=tuple(info.name for _, info in tasks),
        cameras=spec.cameras,
        bounds=bounds_of(action),
    )
    return tasks, shapes


def _wanted(found: _Prepared, rewards: Rewards) -> Wanted:
    """What is read of recorded episodes."""
    spec, config = found.policy.spec, found.config
    reward: Callable[[Recorded], Array] | None = None
    if config.algo == "rlpd":
        reward = functools.partial(rewards.of_recorded, length=spec.replan or spec.chunk_length)
    if config.algo == "reward":
        reward = labels
    return Wanted(
        shapes=found.description.shapes,
        tasks=[info for _, info in found.infos],
        inputs=tuple(spec.inputs or ()),
        first=config.data_episodes,
        reward=reward,
        judges=config.algo == "reward",
    )


def _read_data(found: _Prepared, run: Path, display: Display, wanted: Wanted) -> Path | None:
    """Copy what the policy reads of recorded episodes into a folder beside that of the run, which
    is made only when all is well; None where none are named."""
    config = found.config
    if not config.data:
        return None
    data = temporary(run.with_name(f"{run.name}.data"))
    shutil.rmtree(data, ignore_errors=True)  # left by a run that was killed
    read_data(config.data, wanted, data, Reading(display))
    return data
