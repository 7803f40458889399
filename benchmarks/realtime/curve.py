"""What latency costs a flow policy in MetaWorld, by method, on the same trials.

Clones the scripted expert into a flow policy (chunks of 16 actions, a decision every 8), once, and
then evaluates it with delays of 0 to 8 control steps by each method; `rtc:vjp` is `rtc` with that
guidance. `naive` without a delay is `pause` to the bit. The command may be given again: what is
finished stays. It ends with a picture, OUT/curve.svg.

    python benchmarks/realtime/curve.py OUT [--task push-v3] [--episodes 200] [--methods naive,rtc]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from metaworld.policies import ENV_POLICY_MAP

from hocket.adapters.envs.metaworld import MetaWorld
from hocket.core.specs import ArraySpec
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.results.report import Report
from hocket.results.showing.progress import ProgressDisplay
from hocket.runs.arms import arms_of
from hocket.runs.evaluation import run_jobs
from hocket.train.algorithms.cloning import cloning_loss
from hocket.train.data.windows import Window
from hocket.train.learner import checkpoint
from hocket.train.networks.building import Description
from hocket.train.networks.contract import PROMPT, TASK, Observations, Shapes

CHUNK, REPLAN, MAX_STEPS = 16, 8, 150
STATE = "observation/state"
SETTINGS = {
    "chunk_length": CHUNK,
    "denoising_steps": 5,
    "features": "metaworld",
    "hidden": [256, 256],
    "std": 1e-4,  # Sampling adds no noise of its own: all methods sample by the same flow.
}


def demonstrations(task: str, episodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """States and the chunks that the expert went on with. It is pushed about a little, so that the
    clone has seen how to come back."""
    env = MetaWorld(task, MetaWorld.Config(max_steps=10_000)).make(task)
    env.use_cameras(())
    expert, draw = ENV_POLICY_MAP[task](), np.random.default_rng(0)
    states, chunks = [], []
    for episode in range(episodes):
        env.reset(seed=20_000 + episode)
        seen, done = [], []
        for _ in range(MAX_STEPS):
            seen.append(env.observe()[STATE])
            done.append(np.clip(expert.get_action(seen[-1]), -1, 1).astype(np.float32))
            pushed = done[-1] + draw.normal(0, 0.3, 4) * np.array([1, 1, 1, 0])
            env.advance(np.clip(pushed, -1, 1).astype(np.float32))
        for first in range(MAX_STEPS - CHUNK):
            states.append(seen[first])
            chunks.append(np.stack(done[first : first + CHUNK]))
    env.close()
    return torch.from_numpy(np.array(states)), torch.from_numpy(np.array(chunks))


def clone(folder: Path, task: str, episodes: int, updates: int) -> None:
    """A policy folder as `hocket train` itself writes it."""
    torch.manual_seed(0)
    states, chunks = demonstrations(task, episodes)
    shapes = Shapes(
        observations={STATE: ArraySpec(shape=(39,), dtype="<f8")}, action_size=4, tasks=(task,)
    )
    described = Description(
        network="hocket.train.networks.actor:FlowActor",
        config=SETTINGS,
        shapes=shapes,
        replan=REPLAN,
    )
    network = described.build()
    with torch.no_grad():
        zeros = torch.zeros(len(states), dtype=torch.int64)
        features, _ = network.encode(Observations({STATE: states, TASK: zeros, PROMPT: zeros}))
        network.mean[0] = features.mean(0)
        network.scale[0] = features.std(0).clamp_min(1e-3)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    all_count = torch.ones(256, CHUNK)
    for _ in range(updates):
        pick = torch.randint(len(states), (256,))
        none = torch.zeros(256, dtype=torch.int64)
        seen = Observations({STATE: states[pick], TASK: none, PROMPT: none})
        noise = torch.randn(256, CHUNK * 4 + 1)
        window = Window(observation=seen, actions=chunks[pick], mask=all_count)
        loss = cloning_loss(network, window, noise) / all_count.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    checkpoint.write_folder(
        folder,
        {checkpoint.WEIGHTS: network.state_dict()},
        {checkpoint.POLICY: described.to_plain()},
    )


def run_method(given: argparse.Namespace, policy: Path, method: str) -> dict[str, Report]:
    """The report of each delay. Runs that are finished stay; one that was cut off goes on."""
    name, _, guidance = method.partition(":")
    jobs = arms_of(
        {
            "env": f"metaworld:{given.task}",
            "env_config": {"max_steps": MAX_STEPS},
            "policy": str(policy),
            "policy_config": {"sample": True},
            "episodes": given.episodes,
            "seed": 5000,
            "lanes": given.lanes,
            "delay": given.delays,
            "method": name,
            "rtc_config": {"guidance": guidance} if guidance else {},
            "video": "none",
        },
        None,
    )
    assert len(jobs.runs) > 1, "a curve needs several delays"
    folder = given.out / method.replace(":", "-")
    table = run_jobs(jobs, folder, readers=lambda _: [ProgressDisplay(quiet=True)])
    print(f"--method {method}\n{table.table().text(140)}\n", flush=True)
    return {arm.delay: arm.report for arm in table.arms if arm.report is not None}


def side(report: Report) -> Side:
    """A report as one of two that are compared."""
    return Side.of_report(report, Path("."), [episode.trial for episode in report.episodes])


def beside(found: Mapping[str, Mapping[str, Report]], base: str, other: str) -> str:
    """What one method gains over another at each delay, on the same trials."""
    lines = [f"{other} less {base}, on the same trials:"]
    for delay, report in found[other].items():
        gain = compare_runs(side(report), side(found[base][delay])).comparison.overall
        if gain.value is not None:
            p = "" if gain.p_value is None else f", p = {gain.p_value:.2g}"
            lines.append(f"  delay {delay}: {100 * gain.value:+.1f} points of {gain.n} pairs{p}")
    return "\n".join(lines)


def picture(found: Mapping[str, Mapping[str, Report]]) -> str:
    """Success against delay as SVG: a line for each method, bars for 95 % intervals."""
    width, height, left, top, tall = 560, 300, 50, 40, 210
    most = max(int(delay) for points in found.values() for delay in points)

    def x(delay: str, shift: int = 0) -> float:
        return left + 20 + (width - left - 60) * int(delay) / most + 4 * shift

    def y(share: float) -> float:
        return top + tall * (1 - share)

    parts = [f'<rect width="{width}" height="{height}" fill="white"/>']
    for tick in range(5):
        at = y(tick / 4)
        parts += [
            f'<line x1="{left}" y1="{at}" x2="{width - 20}" y2="{at}" stroke="#ddd"/>',
            f'<text x="{left - 6}" y="{at + 4}" text-anchor="end">{25 * tick} %</text>',
        ]
    for delay in next(iter(found.values())):
        parts.append(f'<text x="{x(delay)}" y="{y(0) + 18}" text-anchor="middle">{delay}</text>')
    middle = (left + width) / 2
    parts.append(f'<text x="{middle}" y="{height - 8}" text-anchor="middle">delay, steps</text>')
    for index, (method, points) in enumerate(found.items()):
        colour, shift = ("#0072b2", "#d55e00", "#009e73")[index], index - 1
        parts += [
            f'<rect x="{left + 100 * index}" y="12" width="16" height="4" fill="{colour}"/>',
            f'<text x="{left + 22 + 100 * index}" y="18">{method}</text>',
        ]
        rates = {delay: report.overall.success for delay, report in points.items()}
        line = " ".join(
            f"{x(delay, shift):.1f},{y(rate.value):.1f}"
            for delay, rate in rates.items()
            if rate.value is not None
        )
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<line x1="{x(delay, shift):.1f}" y1="{y(rate.interval.low):.1f}" '
            f'x2="{x(delay, shift):.1f}" y2="{y(rate.interval.high):.1f}" stroke="{colour}"/>'
            for delay, rate in rates.items()
            if rate.interval is not None
        ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
    head += 'font-family="sans-serif" font-size="12" fill="#222">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", default="push-v3")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--delays", default="0,1,2,3,4,5,6,7,8")
    parser.add_argument("--methods", default="naive,rtc,rtc:vjp")
    parser.add_argument("--demonstrations", type=int, default=40)
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--lanes", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)  # The network is small, and simulators want the other cores.
    policy = given.out / "policy"
    if not policy.exists():
        given.out.mkdir(parents=True, exist_ok=True)
        clone(policy, given.task, given.demonstrations, given.updates)
    methods = given.methods.split(",")
    found = {method: run_method(given, policy, method) for method in methods}
    for method in methods[1:]:
        print(beside(found, methods[0], method), flush=True)
    (given.out / "curve.svg").write_text(picture(found))


if __name__ == "__main__":
    main()
