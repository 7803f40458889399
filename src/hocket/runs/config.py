"""Everything that an evaluation is, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hocket.core.contracts.runtime import Factor
from hocket.core.settings import check_at_least
from hocket.errors import ConfigError
from hocket.runs.subject import Subject
from hocket.workers.env.factors import parse_factors

_LAST_SEED = 1 << 63
"""Seeds are kept in 63 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig(Subject):
    """Everything that an evaluation is; saved with the run, and enough to run it again."""

    protocol: str = ""
    """Run a benchmark as its authors do: libero, metaworld-mt50, metaworld-mt10,
    simpler-widowx-ms3, or a file of your own, my_protocol.yaml. It sets env, episodes, starts,
    limits, settings and replan; what flags set otherwise is told (docs/protocols.md)."""
    episodes: int = 10
    """Trials of each task. All that are planned are run and counted."""
    seed: int = 0
    """First seed. A trial's start state and noise come from its task and seed alone, so the same
    seed gives the same trials on any machine and with any number of lanes."""
    lanes: int | Literal["auto"] = "auto"
    """Episodes that run at once, each in a process of its own. auto takes as many as keep the
    scarcer of cores and policy busy, within memory; 1 runs in this process, where a debugger
    works. The results do not depend on it."""
    replan: int | None = None
    """Execute only the first K actions of each chunk, then ask again. Fewer react sooner and cost
    more inferences; the default is the policy's own, or the whole chunk."""
    ensemble: float | None = None
    """Ask after every action (every K with --replan K) and average what the overlapping chunks
    say of a step, the i-th oldest weighing exp(-M i): temporal ensembling. ACT uses 0.01."""
    delay: int | str = 0
    """How long the world goes on while the policy thinks. Control steps (4), milliseconds by the
    env's control rate (80ms), a range drawn for each chunk (2..6, spikes:2..9@0.1,
    geometric:2..9@0.5), measured (what one row takes on this machine, measured once), or several
    with commas (0,1,2,4,8): a run for each on the same trials, and one report. Needs --method."""
    method: Literal["pause", "blocking", "naive", "rtc", "prefix"] = "pause"
    """What happens meanwhile. pause: nothing, the world waits. blocking: the robot holds still.
    naive: it goes on with the last chunk, then switches. rtc: the same, and the new chunk is guided
    to continue the last one while it is sampled. prefix: for policies trained to continue one."""
    first_chunk: Literal["free", "held"] = "free"
    """free: an episode's first chunk is there at once. held: the robot holds still for it too."""
    exact: bool = False
    """Infer every row alone, in a batch of one, so that results are the same to the bit whatever
    the number of lanes. Costs what batches save: the policy is asked once for every chunk, one
    call at a time. Policies that declare themselves batch_invariant keep their batches. Without
    it a few rows are inferred again in other batches, and the report says how many agreed."""
    max_steps: int | None = None
    """End episodes after N control steps (truncated), instead of each task's own limit."""
    perturb: str = ""
    """Disturb what the policy sees or does, by trial and step: state:noise=0.02, or
    image:blur=2+prompt:empty for both at once (docs/perturbations.md)."""
    retries: int = 2
    """Further attempts at a trial whose env crashed, hung or raised. Only when they are used up
    does the trial count as an error; an error is never a failure of the policy."""
    step_timeout_s: float = 60.0
    """A worker that makes no step for this long hangs: its attempt is lost, and it is replaced."""
    infer_timeout_s: float | None = None
    """A policy that has not answered a batch for this long hangs. Its copy is not asked again, a
    process of its own (--policy-python) is started anew, and the batch's attempts are rerun
    without spending a retry; where no copy is left the run stops, to be resumed. The default is
    300 s, or 100 times what such a batch usually takes, whichever is more. Warm-up may take an
    hour, and the first batch of a new size ten times what the slowest of them took, since it may
    compile."""
    worker_memory: int | None = None
    """Replace a worker that uses more than this (2G, 512M), once its attempt is over or lost."""
    recycle_after: int | None = None
    """Replace each worker after N episodes, for simulators that leak."""
    until: Literal["done", "decided"] = "done"
    """decided stops as soon as the comparison with --against is decided, by a paired test that
    stays valid however often one looks; --episodes is then the cap."""
    against: str | None = None
    """With --until decided: the run folder to compare with, which has run the same trials."""
    alpha: float = 0.05
    """With --until decided: how often it may decide where there is no difference."""
    record: Literal["none", "numbers", "data", "full"] = "numbers"
    """What is kept of each step in the run folder. numbers: action, reward, state and the
    simulator's own state, from which video can be made later. full: every camera's picture too,
    without loss, as datasets need them. data: pictures where states cannot give them back."""
    keep_errors: int = 20
    """Of how many attempts that end in an error the run folder keeps what was recorded up to then:
    steps, states, video. They are shown under errors, and count in no statistic."""
    video: str = "few"
    """Which episodes get a video. few: up to three failures, one success and one crash of each kind
    of each task; first:N: the first N trials of each task. Where the env's states are kept they are
    filmed after the result is told, which Ctrl-C may end without loss, and `hocket video` can film
    more later; other envs are filmed while they run."""
    video_quality: Literal["look", "full"] = "look"
    """How what is filmed after the run is rendered. look leaves out what costs much and tells
    people little (MuJoCo's shadows, reflections and multisampling); full is what policies see."""
    video_mb: float = 2000.0
    """Megabytes that the films of a run may have that are made while it runs; films for which
    nothing is left are not kept, which is told."""
    video_overlay: bool = False
    """Burn the task, the step and the outcome into videos."""
    json_episodes: bool = False
    """List the episodes in report.json however many there are. Without it, above 1,000, they are in
    episodes.parquet beside it, a row each."""

    rtc_config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of --method rtc."""

    @property
    def disturbed(self) -> tuple[Factor, ...]:
        return parse_factors(self.perturb)

    def __post_init__(self) -> None:
        Subject.__post_init__(self)
        check_at_least(
            self, episodes=1, lanes=1, retries=0, keep_errors=0, max_steps=1, recycle_after=1
        )
        if not 0 <= self.seed < _LAST_SEED - self.episodes:
            raise ConfigError(f"seed is {self.seed}; it must be at least 0, and below 2^63.")
        for name in ("step_timeout_s", "infer_timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ConfigError(f"{name} is {seconds}; it must be above 0.")
        if (self.until == "decided") != (self.against is not None):
            raise ConfigError("until='decided' and against=RUN go together: give both, or none.")
        if self.until == "done" and self.alpha != type(self).__dataclass_fields__["alpha"].default:
            raise ConfigError("alpha belongs to until='decided': other runs decide nothing.")
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha is {self.alpha}; it must lie between 0 and 1.")
        # Imported here because they import numpy, and the help of every verb reads this class.
        from hocket.engine.chunk_rules import make_rule
        from hocket.records.video.selection import VideoSelection

        VideoSelection.parse(self.video)
        parse_factors(self.perturb)
        make_rule(self.replan, self.ensemble)
        _check_realtime(self)


def _check_realtime(config: EvalConfig) -> None:
    """Raise where the delay, its method and what goes with them do not fit together."""
    from hocket.engine.delays import MEASURED, Delays, sweep

    delays = sweep(str(config.delay))
    if len(delays) > 1:
        raise ConfigError(
            f"--delay {config.delay} names {len(delays)} delays, and a run has one: hocket eval "
            "makes a run for each."
        )
    if config.method == "pause":
        if delays[0] == MEASURED or not Delays.parse(delays[0]).is_zero:
            raise ConfigError(
                f"--delay {config.delay} needs a --method, for what happens meanwhile: naive goes "
                "on with the last chunk, blocking holds still, rtc and prefix let the policy "
                "continue what is committed. With pause the world waits."
            )
        if config.first_chunk != "free":
            raise ConfigError("--first-chunk held needs a --delay and a --method.")
    if config.ensemble is not None and config.method not in ("pause", "naive"):
        raise ConfigError(
            f"--ensemble averages chunks with --method naive, and not with {config.method}."
        )
    if config.rtc_config and config.method != "rtc":
        raise ConfigError("The flags --rtc.* belong to --method rtc.")
