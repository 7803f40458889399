"""The engine of an evaluation: policy, lanes and batches that its configuration asks for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from hocket.core.contracts.policy import Continues, Policy, Reconnects
from hocket.core.contracts.recorder import Reader
from hocket.core.data import Exactness, Trial
from hocket.core.specs import EnvSpec
from hocket.engine.batches import BatchConfig
from hocket.engine.chunk_rules import make_rule
from hocket.engine.config import EngineConfig
from hocket.engine.delay import CONTINUES, DelayPlan
from hocket.engine.delays import MEASURED, Delays
from hocket.engine.inferring.policy_thread import keeps_state, words
from hocket.engine.loop import Engine
from hocket.errors import ConfigError, PolicyError, SpecMismatchError, UsageError
from hocket.runs.assembly import NOTHING_RECORDED, Assembly, EnginePlan, Recording
from hocket.runs.config import EvalConfig
from hocket.runs.probe import check_specs
from hocket.workers.fleet import FleetConfig
from hocket.workers.lending import Fleets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """A configuration with a live policy, its lanes counted. Whoever runs trials, here or for a run
    on another machine, takes its engine from here."""

    config: EvalConfig
    assembly: Assembly
    policy: Policy
    batching: BatchConfig
    lanes: int
    timing: DelayPlan | None = None
    """When answers can be used, where the world goes on while the policy thinks."""

    @classmethod
    def prepare(
        cls, config: EvalConfig, assembly: Assembly, policy: Policy, trial: Trial, episodes: int
    ) -> Rollout:
        """Count the lanes, where that is left to us by a look at `trial`; PolicyHungError where the
        policy does not answer."""
        _refuse_long_replan(config, policy)
        timing = _timing_of(config, policy)
        batching = _batching(config, policy)
        lanes = assembly.count_lanes(
            policy,
            trial,
            episodes,
            replan=config.replan,
            fits=_refuse_misfits(config.policy, policy),
            alone=batching.alone,
        )
        return cls(
            config=config,
            assembly=assembly,
            policy=policy,
            batching=batching,
            lanes=lanes,
            timing=timing,
        )

    @property
    def level(self) -> Exactness:
        """What "same trial, same result" means here."""
        # A server may put a row that was asked for alone into a batch with rows of other clients.
        is_alone = self.batching.alone and not isinstance(self.policy, Reconnects)
        return self.policy.spec.exactness(alone=is_alone)

    @contextlib.contextmanager
    def engine(
        self,
        fleets: Fleets,
        readers: Sequence[Reader],
        recording: Recording = NOTHING_RECORDED,
        *,
        check: bool = True,
        gives_back: bool = False,
    ) -> Iterator[Engine]:
        """The engine with its workers, which `fleets` lends. `gives_back`: see EngineConfig."""
        config, policy = self.config, self.policy
        worker = replace(
            self.assembly.worker(policy.spec, self.lanes),
            sinks=recording.sinks,
            slots=1 if self.timing is None else 2,
        )
        fleet = fleets.lend(
            self.assembly.runtime,
            worker,
            FleetConfig(
                lanes=self.lanes,
                step_timeout_s=config.step_timeout_s,
                start_timeout_s=config.start_timeout_s,
                worker_memory=config.worker_memory,
                recycle_after=config.recycle_after,
            ),
            where=(config.runtime, config.runtime_config),
        )
        plan = EnginePlan(
            rule=make_rule(config.replan or policy.spec.replan, config.ensemble),
            config=EngineConfig(
                retries=config.retries,
                max_steps=config.max_steps,
                gives_back=gives_back,
                compares_starts=True,
            ),
            batching=self.batching,
            timing=self.timing,
            infer_timeout_s=config.infer_timeout_s,
            fits=_refuse_misfits(config.policy, policy, self.timing) if check else lambda _: None,
        )
        with self.assembly.engine(policy, fleet, plan, readers, recording) as engine:
            yield engine


def _batching(config: EvalConfig, policy: Policy) -> BatchConfig:
    """How rows are put into batches: each alone where `exact` asks for what the policy does not
    promise, else together and, where they can be asked for twice, with checks."""
    alone = config.exact and not policy.spec.batch_invariant
    checks = policy.spec.exactness(alone=alone) == "inputs" and not keeps_state(policy)
    return BatchConfig(alone=alone, checks=checks)


def _refuse_misfits(
    name: str, policy: Policy, timing: DelayPlan | None = None
) -> Callable[[EnvSpec], None]:
    def fits(spec: EnvSpec) -> None:
        if timing is not None:
            timing.fits(spec)
            timing.check(policy.spec.chunk_length, spec.task.control_rate)
        problems = check_specs(policy.spec, spec, name)
        if problems:
            raise SpecMismatchError(
                f"Env task {spec.task.name!r} and the policy do not fit: {' '.join(problems)} "
                "`hocket check` shows both side by side."
            )

    return fits


def _refuse_long_replan(config: EvalConfig, policy: Policy) -> None:
    length = policy.spec.chunk_length
    if config.replan is not None and 0 < length < config.replan:
        raise ConfigError(
            f"replan is {config.replan}, but a chunk of policy {config.policy!r} has only {length} "
            f"actions. Choose at most {length}."
        )


def _timing_of(config: EvalConfig, policy: Policy) -> DelayPlan | None:
    """When answers can be used in this run; None where the world waits. Tells the policy of the
    method, where it has a part in it."""
    if config.method == "pause":
        return None
    length = policy.spec.chunk_length
    replan = config.replan or policy.spec.replan
    if replan is None:
        replan = 1 if config.ensemble is not None else length
    if not replan:
        raise ConfigError(
            f"The policy {config.policy!r} does not say how long its chunks are: give --replan."
        )
    method, delays = config.method, Delays.parse(str(config.delay))
    if method in CONTINUES:
        _check_continues(policy, method, config.policy)
    if method == "prefix" and delays.is_zero:
        method = "naive"  # Nothing is committed, so that the policy's own chunks are what it gives.
    timing = DelayPlan(
        method=method,
        delays=delays,
        replan=replan,
        first_chunk=config.first_chunk,
    )
    if timing.delays.unit == "steps":  # Others are checked once an env tells its control rate.
        timing.check(length, None)
    if method in CONTINUES and isinstance(policy, Continues):
        with words():
            policy.continue_by(method, config.rtc_config)
    return timing


def _check_continues(policy: Policy, method: str, name: str) -> None:
    known = policy.continuations if isinstance(policy, Continues) else ()
    if not isinstance(known, Collection):
        raise PolicyError(
            f"continuations of policy {name!r} is a {type(known).__name__}; it is read as a value, "
            "such as ('prefix',): make it an attribute or a @property."
        )
    if not isinstance(policy, Continues) or method not in known:
        raise UsageError(
            f"Policy {name!r} cannot continue a chunk by --method {method}"
            + (f" (it knows {' and '.join(known)})" if known else "")
            + ". --method naive works with every policy; docs/realtime.md says what one needs."
        )
    if not policy.spec.chunk_length:
        raise UsageError(f"--method {method} needs a policy that says how long its chunks are.")


def fixed_delay(config: EvalConfig, assembly: Assembly) -> EvalConfig:
    """The configuration with what this machine was measured to take, where it asks for that: the
    seconds in which the policy answers one row, its first trial's."""
    if config.delay != MEASURED:
        return config
    trial = assembly.first_trial(config.seed)
    policy = assembly.policy([trial])
    try:
        seen = assembly.probe(policy, trial, replan=config.replan)
    finally:
        assembly.close()
        policy.close()
    return replace(config, delay=f"{1000 * seen.latencies[1]:.1f}ms")
