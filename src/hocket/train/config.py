"""Everything that a training run is, as one value, and the algorithms' settings, declared once:
`hocket train` makes flags of them. Importing this needs no torch, so that `--help` is quick."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from hocket.core.settings import check_at_least
from hocket.errors import ConfigError
from hocket.runs.subject import Subject
from hocket.train.reward_terms import SUCCESS, reward_terms
from hocket.train.settings import DAggerConfig, RLPDConfig, check_shares

_STARTS = 100
"""Starts of each task that a curriculum chooses from."""
_FEWEST_CHUNKS, _FEWEST_ACTIONS = 16, 64
"""What a step learns from at least. Chunks of one action in sixteens make steps so noisy that
Pendulum is learnt and forgotten again; in sixty-fours it stays learnt."""
_EPISODES, _FEWEST_EPISODES, _ENOUGH_STEPS = 32, 8, 2048
"""Episodes of a batch, and env steps that are enough for one where every step is rewarded: more of
them only make updates rare. Where success alone counts, an episode tells one bit."""
_OF_ALGORITHMS = {"rlpd": 4, "dagger": 20}
"""The same where all that was collected is learnt from each time, and of a round of corrections."""
_DENSE_CRITIC = 3.0
"""How many times the learning rate a critic of dense rewards has: else policies wait for it."""
_DECAY, _DENSE_DECAY = 0.99, 0.95
"""Decays of advantages. A success is seen from afar only with the first; where every step is
rewarded, the second leaves more to a critic that soon knows."""
Level = Literal["chunk", "action"]
Correction = Literal["none", "decoupled"]
Precision = Literal["fp32", "bf16"]
NoiseAt = Literal["all", "one"]
Inner = Literal["executed", "all"]
Spread = Literal["step", "observation"]
OF_FLOWS = ("noise_at", "inner", "spread")
"""The settings that say how a flow is sampled, and what of it is learnt from."""


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """Settings of an update of the weights, which all algorithms share."""

    lr: float = 3e-4
    """Learning rate of Adam."""
    lr_end: float | None = None
    """Where the learning rate goes, in a straight line over all steps."""
    epochs: int = 6
    """Passes over a batch."""
    minibatch: int | None = None
    """Chunks that one step learns from, so that long episodes give as many steps for each chunk as
    short ones. The default is 16, and more of chunks with fewer than 4 actions: as many as have
    64."""
    micro_batch: int | None = None
    """Chunks that are computed at once, for large networks: a step sums the gradients of as many
    as its minibatch has, and what a device must hold does not grow with the batch. The default is
    the whole minibatch."""
    precision: Precision = "fp32"
    """bf16 computes with half of the bits, where the network acts and learns; weights and steps
    keep all of them."""
    clip: float = 0.2
    """How far a probability may move in an update, as a share of itself."""
    clip_high: float | None = None
    """How far it may grow; the default is clip for ppo, and 0.28 for grpo."""
    entropy: float = 0.0
    """Weight of a bonus for spread actions."""
    target_kl: float | None = 0.2
    """How far an update may move the policy, in nats. A step beyond that is undone, the critic goes
    on without the policy, and the next updates make smaller steps."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm, the policy's and the critic's apart."""
    ratio: Level | None = None
    """Compare probabilities of a chunk's executed actions together, or action by action; the
    default is the latter where the policy can tell them apart."""
    correction: Correction | None = None
    """How data of older weights is made up for: decoupled (by probabilities at the start of the
    update, the default) or none. Fresh data has weights of 1 with either."""

    def minibatch_of(self, length: int) -> int:
        """Chunks of this length that one step learns from."""
        return self.minibatch or max(_FEWEST_CHUNKS, _FEWEST_ACTIONS // length)

    def __post_init__(self) -> None:
        check_at_least(self, epochs=1, minibatch=1, micro_batch=1)
        check_shares(self, ("clip", "clip_high"))


@dataclass(frozen=True, kw_only=True)
class PPOConfig(UpdateConfig):
    """Settings of PPO."""

    gamma: float = 0.995
    """Discount of one env step; a chunk of k steps discounts by its k-th power."""
    lam: float | None = None
    """Decay of advantages over one env step. The default is 0.99, and 0.95 where more than success
    is rewarded."""
    clip_value: float | None = None
    """How far a value may move in an update; off by default."""
    value_weight: float = 0.5
    """Weight of the critic's loss."""
    critic_lr: float | None = None
    """Learning rate of the critic alone. The default is lr, and where more than success is rewarded
    three times that."""
    value_only: int = 1
    """First updates that train the critic alone, for ppo: a critic that knows nothing spoils a good
    start."""

    @property
    def decay(self) -> float:
        """Decay of advantages over one env step."""
        return _DECAY if self.lam is None else self.lam

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, value_only=0)
        check_shares(self, ("gamma", "lam"))


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(UpdateConfig):
    """Settings of GRPO."""

    group: int = 8
    """Episodes of a group, for grpo."""
    pin_version: bool = False
    """Hold all episodes of a group to the weights that the first of them began with."""
    kl_weight: float = 0.0
    """How strongly grpo holds the policy to the one that training began with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, group=2)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(GRPOConfig, PPOConfig, RLPDConfig, DAggerConfig, Subject):
    """Everything that a training run is; saved with it, and enough to run it again.

    The settings of the algorithms are inherited from their owners, so that the command line and
    `run.yaml` are flat. Those of the algorithm that does not run have no effect.
    """

    noun: ClassVar[str] = "Training"

    algo: Literal["ppo", "grpo", "rlpd", "bc", "dagger", "reward"] = "ppo"
    """ppo learns from every episode, with a critic; grpo from groups of episodes that began in the
    same state and ended differently; rlpd from all that was ever collected and from recorded
    episodes (--data) again and again, where env steps are dear; bc from recorded episodes alone;
    dagger from these and from what an --expert does in states that the policy reached; reward
    makes a reward model of recorded episodes, failures too, for --reward FOLDER of other runs."""
    mode: Literal["sync", "async"] = "sync"
    """sync collects, then learns, and is reproducible from its seed; async does both at once, in
    two processes."""
    steps: int = 200_000
    """Env steps of training; evaluations are not counted. For bc: recorded steps that are learnt
    from, each as often as it is drawn."""
    minutes: float | None = None
    """Stop after this long, even with steps left."""
    stop_at: float | None = None
    """Stop once an evaluation is this good: a share of successes, or a return."""
    seed: int = 0
    """First seed. A trial's start state and noise come from its task and seed alone, so the same
    seed gives the same trials on any machine and with any number of lanes."""
    lanes: int | Literal["auto"] = "auto"
    """Episodes that run at once, each in a process of its own; 1 runs in this process. auto takes
    as many as keep the cores busy."""
    batch: int | None = None
    """Episodes to learn from in each update. The default is 32; where more than success is rewarded
    and episodes are long, it is as many as may have 2,048 steps, and at least 8."""
    replan: int | None = None
    """Execute only the first K actions of each chunk."""
    reward: str = SUCCESS
    """success gives 1 at the step that ends an episode with success; env takes the env's own; the
    folder of a reward model (--algo reward) how likely that was a success; or a function of your
    own as package.module:function. Several are summed, with weights:
    success,0.1*env,-0.01*my_rewards:effort."""
    max_steps: int | None = None
    """End episodes after N control steps (truncated), instead of each task's own limit."""

    data: tuple[str, ...] = ()
    """Recorded episodes to learn from: run folders (hocket collect, hocket eval), or LeRobot
    datasets (v3.0). bc needs them; ppo and grpo learn from them beside their own episodes. Those
    that did not succeed are left out."""
    data_episodes: int | None = None
    """Take only the first N recorded episodes of each task."""
    bc_weight: float = 0.1
    """Weight of recorded episodes beside ppo or grpo."""

    std: float | None = None
    """Spread of actions at the start; the default is the policy's own."""
    noise_at: NoiseAt | None = None
    """Which steps of a flow add noise where episodes are collected: `all`, the default, or `one`,
    drawn for each chunk: an update then runs that step alone instead of all."""
    inner: Inner | None = None
    """Whose probabilities count in all steps of a flow but the last: of the actions that were
    `executed`, the default, or of `all` numbers of a chunk, which is exact and far noisier."""
    spread: Spread | None = None
    """Whether a flow's noise has one spread for each `step`, the default, or one for each
    `observation` too, up to three times wider or narrower."""
    residual: bool = False
    """Leave the policy as it is and train a correction of its actions: for policies that tell no
    probabilities, such as servers."""
    residual_scale: float = 0.2
    """How far the correction may move an action, roughly."""
    steer: bool = False
    """Leave the policy as it is and train a small one that chooses the noise which its chunks flow
    from (DSRL): for flow policies here, in another interpreter or at a server that takes noise."""
    adapter: str = ""
    """lora:r=16 leaves the network as it is, and trains small matrices of that rank beside its
    linear layers, and the critic (needs the extra peft); lora:r=16,alpha=32 scales them."""
    critic_features: str = ""
    """The submodule of a torch: or lerobot: policy whose output the critic sees; the default is
    what the module names, else the env's states."""
    weights: str = ""
    """Begin with these weights (.safetensors) of a class of your own."""

    max_staleness: int = 2
    """Versions that data may be behind the weights in async mode."""
    segment_chunks: int = 0
    """Learn from stretches of N chunks before an episode ends, for ppo and long episodes; 0 learns
    from whole episodes."""

    starts: int | None = None
    """Train on N starts of each task, over and over, instead of ever new ones."""
    curriculum: str = ""
    """How often each of these starts is tried (100 of each task, unless --starts says): hard (most
    where success and failure are as likely), or a function of your own as package.module:function.
    """

    eval_env_config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the envs in evaluations, where they differ from those in training."""
    eval_every: int = 20_000
    """Env steps between evaluations; 0 for none."""
    eval_episodes: int = 20
    """Trials of an evaluation, of all tasks together, at least two of each: always the same, and
    sampled as `hocket eval` does."""
    eval_seed: int = 0
    """Seed of the first of them; training uses others."""
    checkpoint_every: int = 20_000
    """Env steps between checkpoints; 0 for one at the end only."""

    device: str = "cpu"
    """Where learning happens."""
    collect_device: str = "cpu"
    """Where the policy acts."""
    checkpoint_activations: bool = False
    """Compute what is inside of a network's blocks again where gradients need it, instead of
    keeping it: less memory, more time."""
    threads: int = 1
    """CPU threads of each process that uses torch. With one, sync mode is reproducible bit by
    bit."""
    retries: int = 2
    """Further attempts at an episode whose env crashed, hung or raised."""
    step_timeout_s: float = 60.0
    """A worker that makes no step for this long hangs, and is replaced."""

    def __post_init__(self) -> None:
        Subject.__post_init__(self)
        super().__post_init__()
        RLPDConfig.__post_init__(self)
        DAggerConfig.__post_init__(self)
        check_at_least(
            self,
            lanes=1,
            steps=1,
            batch=1,
            max_staleness=0,
            segment_chunks=0,
            eval_every=0,
            eval_episodes=1,
            checkpoint_every=0,
            retries=0,
            threads=1,
            data_episodes=1,
            starts=1,
        )
        self._check_data()
        reward_terms(self.reward)
        if self.residual and self.steer:
            raise ConfigError("A policy is corrected (--residual) or steered (--steer), not both.")
        if self.policy_python is not None and not self.has_base:
            raise ConfigError(
                "A network in training runs in this interpreter. --policy-python is for "
                "--residual and --steer, which leave the policy as it is and where it is."
            )
        if self.policy_devices:
            raise ConfigError(
                "policy_devices are for evaluation; a network in training has device and "
                "collect_device."
            )
        if self.mode == "async" and self.max_staleness < 1:
            raise ConfigError(
                "max_staleness is 0: collection would wait for every update. Use --mode sync, or "
                "allow at least 1."
            )
        if self.algo == "grpo" and self.batch is not None and self.batch % self.group:
            raise ConfigError(
                f"A batch of {self.batch} episodes does not hold whole groups of {self.group}."
            )
        if self.algo == "grpo" and self.segment_chunks:
            raise ConfigError("GRPO learns from whole episodes; leave out --segment-chunks.")

    @property
    def functions(self) -> list[str]:
        """The user's own functions, each package.module:function."""
        return [term.name for term in reward_terms(self.reward) if term.is_function] + (
            [self.curriculum] if ":" in self.curriculum else []
        )

    @property
    def network_name(self) -> str:
        """The class that learns as the user named it, beside a folder of saved weights or alone."""
        return self.policy_config.get("network") or self.policy

    @property
    def reward_models(self) -> list[str]:
        """The run folders of reward models that are rewards here."""
        return [term.name for term in reward_terms(self.reward) if term.is_model]

    def _check_data(self) -> None:
        if self.is_cloning and not self.data:
            raise ConfigError(f"{self.algo} learns from recorded episodes: name them with --data.")
        if self.is_cloning and (self.has_base or self.mode == "async"):
            raise ConfigError(
                f"{self.algo} learns from recordings: leave out --residual, --steer and --mode "
                f"async."
            )
        if self.algo == "dagger" and not self.expert:
            raise ConfigError("dagger needs somebody who takes over: name a policy with --expert.")
        if self.algo == "rlpd" and self.has_base:
            raise ConfigError("rlpd trains no policy beside another: use ppo, or leave it out.")
        if self.data and self.has_base:
            raise ConfigError(
                "Recorded episodes lack what the policy would have done, and from which noise: "
                "leave out --data, or --residual and --steer."
            )
        if self.bc_weight < 0:
            raise ConfigError(f"bc_weight is {self.bc_weight}; it must be at least 0.")

    @property
    def is_cloning(self) -> bool:
        """True if it learns from recorded episodes alone, whoever recorded them."""
        return self.algo in ("bc", "dagger", "reward")

    @property
    def has_base(self) -> bool:
        """True if the policy stays as it is, and a network beside it is trained."""
        return self.residual or self.steer

    @property
    def start_count(self) -> int | None:
        """Starts of each task that are trained on; None where each is new."""
        return self.starts or (_STARTS if self.curriculum else None)

    @property
    def batch_count(self) -> int:
        """Episodes of an update, of a run whose default has been replaced by a number."""
        return self.batch or _EPISODES

    def settled(self, steps: int) -> TrainConfig:
        """The same with numbers for what is left to the reward; `steps` is the most env steps that
        an episode has, 0 where that is not known."""
        batch, decay, critic_lr = _EPISODES, _DECAY, self.lr
        if self.reward != SUCCESS:
            critic_lr = _DENSE_CRITIC * self.lr
            batch = max(_FEWEST_EPISODES, min(batch, _ENOUGH_STEPS // max(1, steps)))
            decay = _DENSE_DECAY
        batch = _OF_ALGORITHMS.get(self.algo, batch)
        if self.algo == "grpo":
            batch = max(1, batch // self.group) * self.group
        lam = decay if self.lam is None else self.lam
        critic_lr = critic_lr if self.critic_lr is None else self.critic_lr
        return dataclasses.replace(self, batch=self.batch or batch, lam=lam, critic_lr=critic_lr)

    @property
    def lane_count(self) -> int:
        """Lanes of a run whose `auto` has been replaced by a number."""
        assert self.lanes != "auto"
        return self.lanes

    @property
    def staleness(self) -> int:
        """Versions that data may be behind the weights: none in synchronous mode."""
        return self.max_staleness if self.mode == "async" else 0
