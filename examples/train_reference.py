"""Trains the bundled `reference` policy again, from nothing: about ten minutes on two cores.

    pip install 'hocket[metaworld,torch]'
    python examples/train_reference.py --out reference.npz
    hocket eval --env metaworld:mt10 --policy reference --policy.weights reference.npz

Behaviour cloning of MetaWorld's scripted experts, in rounds:

1. An expert plays, disturbed now and then by bursts of random actions. Every state from which it
   played undisturbed for a whole chunk is an example: the state, and those 16 actions.
2. The networks (one for each task) are fitted to the examples.
3. The networks play, a chunk at a time. At every decision the expert shows, from a snapshot, what
   it would have done there; these are new examples. Back to 2, until the rounds are over.

Training uses seeds from 10000 on; the table at the end is of seeds 0 to 19, which it never saw.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hocket.adapters.envs.metaworld import MT10, MetaWorld
from hocket.adapters.policies.reference import (
    ACTION_SIZE,
    CHUNK_LENGTH,
    STATE_KEY,
    Network,
    Reference,
    ReferenceConfig,
    features,
    pack,
)
from hocket.core.data import Batch, Row, Trial

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Trains the reference policy."""

    out: Path = Path("reference.npz")
    """Where the weights go."""
    processes: int = 2
    first_seed: int = 10_000
    """Training seeds count up from here."""
    expert_episodes: int = 100
    """Disturbed episodes of each expert."""
    rounds: int = 3
    """How often the networks play and are corrected."""
    round_episodes: int = 40
    """Episodes of each task in such a round."""
    width: int = 256
    steps: int = 800
    """Updates in each fit; the last fit has three times as many."""
    evaluation_seeds: int = 20
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What a collecting process is sent to do."""

    task: str
    seeds: tuple[int, ...]
    weights: Path | None = None
    """The networks that play; None sends the expert."""
    correct: bool = True
    """Ask the expert at every decision; False only counts successes."""


@dataclass(frozen=True, kw_only=True)
class Harvest:
    """What it brings back: states `[N, 39]`, chunks `[N, T, A]`, and the successes."""

    task: str
    states: Floats
    chunks: Floats
    successes: int
    episodes: int


# -- Collecting, in processes of their own -------------------------------------------------------


class Collector:
    """One task's env and expert."""

    def __init__(self, errand: Errand) -> None:
        from metaworld.policies import ENV_POLICY_MAP

        # Detours to watch the expert count as steps too, so the env's own limit is out of reach.
        suite = MetaWorld(errand.task, MetaWorld.Config(max_steps=10_000))
        self.env = suite.make(errand.task)
        self.env.use_cameras(())
        self.errand = errand
        self.expert = ENV_POLICY_MAP[errand.task]()
        self.states: list[Floats] = []
        self.chunks: list[Floats] = []

    def expert_action(self) -> Floats:
        state = self.env.observe()[STATE_KEY]
        return np.clip(self.expert.get_action(state), -1, 1).astype(np.float32)

    def show(self, starts: int) -> bool:
        """The expert plays undisturbed; its first `starts` states become examples."""
        seen, done, success = [], [], False
        for _ in range(starts + CHUNK_LENGTH - 1):
            seen.append(self.env.observe()[STATE_KEY])
            done.append(self.expert_action())
            success |= self.env.advance(done[-1])[3]["success"]
        for first in range(starts):
            self.states.append(seen[first])
            self.chunks.append(np.stack(done[first : first + CHUNK_LENGTH]))
        return success

    def play_expert(self, seed: int) -> bool:
        rng = np.random.default_rng(seed)
        self.env.reset(seed=seed)
        for _ in range(14):
            if self.show(starts=int(rng.integers(4, 24))):
                return True
            # A drift in one direction, on top of what the expert does or instead of it.
            drift = rng.normal(0, 0.6, 4)
            share = rng.choice((0.0, 1.0))
            for _ in range(int(rng.integers(1, 10))):
                action = share * self.expert_action() + drift + rng.normal(0, 0.3, 4)
                self.env.advance(np.clip(action, -1, 1))
        return False

    def play_networks(self, seed: int, policy: Reference) -> bool:
        self.env.reset(seed=seed)
        limit = 320 if self.errand.correct else 500
        for start in range(0, limit, CHUNK_LENGTH):
            state = self.env.observe()[STATE_KEY]
            if self.errand.correct:
                snapshot = self.env.get_state()
                self.show(starts=6)
                self.env.set_state(snapshot)
            for action in answer(policy, self.errand.task, state)[: limit - start]:
                if self.env.advance(action)[3]["success"]:
                    return True
        return False


def answer(policy: Reference, task: str, state: Floats) -> Floats:
    trial = Trial(suite="metaworld", task=task, seed=0)
    row = Row(trial=trial, attempt=0, chunk=0, noise_seed=0, prompt="", session="")
    return policy.infer(Batch(arrays={STATE_KEY: state[None]}, rows=(row,))).values[0]


def collect(errand: Errand) -> Harvest:
    warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")
    collector = Collector(errand)
    if errand.weights is None:
        ends = [collector.play_expert(seed) for seed in errand.seeds]
    else:
        policy = Reference("", ReferenceConfig(weights=str(errand.weights)))
        ends = [collector.play_networks(seed, policy) for seed in errand.seeds]
    collector.env.close()
    return Harvest(
        task=errand.task,
        states=np.array(collector.states).reshape(-1, 39),
        chunks=np.array(collector.chunks, np.float32).reshape(-1, CHUNK_LENGTH, ACTION_SIZE),
        successes=sum(ends),
        episodes=len(ends),
    )


# -- Fitting -------------------------------------------------------------------------------------


def fit(harvests: list[Harvest], recipe: Recipe, steps: int) -> dict[str, Network]:
    """One network for each task, all fitted side by side as one batch of matrices."""
    import torch

    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.processes)
    inputs, targets, means, scales = [], [], [], []
    for task in MT10:
        of_task = [harvest for harvest in harvests if harvest.task == task]
        seen = features(np.concatenate([harvest.states for harvest in of_task]))
        chunks = np.concatenate([harvest.chunks for harvest in of_task])
        mean, scale = seen.mean(0), np.maximum(seen.std(0), 0.02)
        inputs.append(torch.from_numpy((seen - mean) / scale))
        targets.append(torch.from_numpy(chunks.reshape(len(chunks), -1)))
        means.append(mean)
        scales.append(scale)
    sizes = (inputs[0].shape[1], recipe.width, recipe.width, recipe.width, targets[0].shape[1])
    parameters = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        parameters.append(torch.randn(len(MT10), fan_in, fan_out) * (2 / fan_in) ** 0.5)
        parameters.append(torch.zeros(len(MT10), 1, fan_out))
    parameters = [parameter.requires_grad_() for parameter in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.1
    )
    average = [parameter.detach().clone() for parameter in parameters]
    for step in range(steps):
        picks = [torch.randint(len(seen), (256,)) for seen in inputs]
        hidden = torch.stack([seen[pick] for seen, pick in zip(inputs, picks, strict=True)])
        wanted = torch.stack([chunk[pick] for chunk, pick in zip(targets, picks, strict=True)])
        hidden = hidden + 0.01 * torch.randn_like(hidden)
        for depth in range(0, len(parameters), 2):
            hidden = torch.baddbmm(parameters[depth + 1], hidden, parameters[depth])
            if depth + 2 < len(parameters):
                hidden = torch.relu(hidden)
        loss = torch.nn.functional.smooth_l1_loss(hidden, wanted, beta=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for kept, parameter in zip(average, parameters, strict=True):
                kept.lerp_(parameter, max(0.005, 1 / (step + 1)))
        if (step + 1) % 500 == 0:
            print(f"  step {step + 1}/{steps}: loss {loss.item():.4f}", flush=True)
    arrays = [parameter.numpy() for parameter in average]
    return {
        task: Network(
            mean=means[i],
            scale=scales[i],
            layers=tuple(
                (arrays[depth][i].T, arrays[depth + 1][i, 0]) for depth in range(0, len(arrays), 2)
            ),
        )
        for i, task in enumerate(MT10)
    }


# -- The recipe ----------------------------------------------------------------------------------


def send(errands: list[Errand], recipe: Recipe, what: str) -> list[Harvest]:
    """Run errands in processes; slow ones are split so that no process waits long for another."""
    split = [
        replace(errand, seeds=errand.seeds[first : first + 10])
        for errand in errands
        for first in range(0, len(errand.seeds), 10)
    ]
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(recipe.processes) as pool:
        harvests = pool.map(collect, split, chunksize=1)
    examples = sum(len(harvest.states) for harvest in harvests)
    rate = sum(h.successes for h in harvests) / sum(h.episodes for h in harvests)
    seconds = time.perf_counter() - began
    print(f"{what}: success {rate:.1%}, {examples} examples, {seconds:.0f} s", flush=True)
    return harvests


def table(harvests: list[Harvest], recipe: Recipe) -> str:
    lines = ["| task | success |", "|---|---|"]
    total = 0
    for task in MT10:
        successes = sum(h.successes for h in harvests if h.task == task)
        total += successes
        lines.append(f"| {task} | {successes}/{recipe.evaluation_seeds} |")
    planned = recipe.evaluation_seeds * len(MT10)
    lines.append(f"| **all** | {total}/{planned} ({total / planned:.1%}) |")
    return "\n".join(lines)


def train(recipe: Recipe) -> None:
    # One thread for each collecting process: they are as many as the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    began = time.perf_counter()
    seed = recipe.first_seed

    def fresh(count: int) -> tuple[int, ...]:
        nonlocal seed
        seed += count
        return tuple(range(seed - count, seed))

    errands = [Errand(task=task, seeds=fresh(recipe.expert_episodes)) for task in MT10]
    harvests = send(errands, recipe, "experts, disturbed")
    for turn in range(recipe.rounds + 1):
        is_last = turn == recipe.rounds
        networks = fit(harvests, recipe, recipe.steps * (3 if is_last else 1))
        np.savez_compressed(recipe.out, **pack(networks))
        if not is_last:
            errands = [
                Errand(task=task, seeds=fresh(recipe.round_episodes), weights=recipe.out)
                for task in MT10
            ]
            harvests += send(errands, recipe, f"networks, round {turn + 1}")
    seeds = tuple(range(recipe.evaluation_seeds))
    errands = [Errand(task=task, seeds=seeds, weights=recipe.out, correct=False) for task in MT10]
    result = table(send(errands, recipe, f"evaluation, seeds 0 to {seeds[-1]}"), recipe)
    minutes = (time.perf_counter() - began) / 60
    print(f"{result}\n\ntrained on seeds {recipe.first_seed} to {seed - 1}, {minutes:.1f} minutes")


if __name__ == "__main__":
    import tyro

    train(tyro.cli(Recipe))
