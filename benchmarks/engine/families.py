"""Families of settings for the scheduler, drawn at random: lanes, cores, what chunks and batches
cost, and what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import exp, inf, log

from hocket.engine.inferring.replicas import TIMING, TIMING_S
from hocket.engine.scheduling.model import size_to_time, with_stairs

SHAPES = ("affine", "flat", "stairs of 2^k", "stairs of 8", "graph shapes", "knee")
"""What the latency is like: families of their own, and drawn for every other family."""
FAMILIES = (
    *SHAPES,
    "heavy tails",
    "two tasks",
    "two signatures",
    "replicas",
    "drift",
    "hiccup",
    "resets",
    "tail of a run",
    "shared",
)
SHARING = ("start", "slowed", "slices")
"""How a policy shares its GPU with lanes that render on it: an inference takes longer by `beside`
for each lane that executes when it begins; or it goes slower by that while so many execute; or each
chunk ends in `beside` seconds of the GPU, which goes round among all that want it in equal slices,
as measured on an H200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One situation."""

    family: str
    lanes: int
    cores: float
    """inf: chunks do not compete for cores."""
    execute_s: float
    """Mean seconds of a chunk, alone on the machine."""
    sigma: float = 0.1
    """Standard deviation of the log of a chunk's duration."""
    pareto: float = 0.0
    """Where set, durations have a Pareto tail of this exponent instead."""
    apart: float = 1.0
    """Chunks of the second of two tasks take this many times as long."""
    signatures: int = 1
    base_s: float
    row_s: float
    padded: tuple[int, ...] = ()
    """Sizes to which the policy pads its batches."""
    is_told: bool = False
    """The policy states these sizes."""
    knee: int = 1 << 30
    knee_row_s: float = 0.0
    """Seconds more of each row beyond `knee` rows."""
    max_batch: int = 64
    concurrency: int = 1
    drift: str = ""
    """`step`, `ramp` or `hiccup`: what becomes of the latency."""
    factor: float = 1.0
    reset_s: float = 0.05
    episode: tuple[int, int] = (4, 19)
    """Chunks of the shortest and the longest episode."""
    trials: int | None = None
    """Episodes in all: the run ends with its last one. None: a run without end."""
    sharing: str = ""
    """One of `SHARING`, where lanes render on the policy's GPU."""
    beside: float = 0.0

    def latency(self, size: int) -> float:
        """Seconds for a batch, before any drift."""
        rows = next((padded for padded in self.padded if padded >= size), size)
        return self.base_s + self.row_s * rows + self.knee_row_s * max(0, size - self.knee)

    def scale(self, done: float) -> float:
        """What the latency is multiplied by once this share of the run is done."""
        if self.drift == "step":
            return self.factor if done > 0.4 else 1.0
        if self.drift == "ramp":
            return float(self.factor ** min(1.0, max(0.0, (done - 0.3) / 0.4)))
        return 1.0

    @property
    def largest(self) -> int:
        """Rows of the largest batch that can be."""
        return min(self.lanes, self.max_batch)

    def timed(self) -> dict[int, float]:
        """What a warm-up knows, which times each size by two calls, as long as it may."""
        must = {*(1 << power for power in range(self.largest.bit_length())), self.largest}
        timed = {size: self.latency(size) for size in must}
        told = self.padded if self.is_told else ()
        left_s = max(TIMING_S, TIMING * sum(timed.values()))
        while left_s > 0:
            size = size_to_time(timed, told)
            if size is None:
                break
            timed[size] = self.latency(size)
            left_s -= 2 * timed[size]
        return with_stairs(timed, told)

    def __str__(self) -> str:
        cores = "no contention" if self.cores == inf else f"{self.cores:g} cores"
        parts = [
            f"{self.lanes} lanes, {cores}, chunks {self.execute_s:.3f} s (sigma {self.sigma:.2f})",
            f"L {1000 * self.base_s:.0f} + {1000 * self.row_s:.1f} B ms, at most {self.max_batch}",
            f"K {self.concurrency}, resets {self.reset_s:.2f} s, episodes {self.episode}",
        ]
        if self.padded:
            told = "told" if self.is_told else "not told"
            parts.append(f"padded to {','.join(map(str, self.padded[:8]))} ({told})")
        if self.knee_row_s:
            parts.append(f"knee {self.knee} + {1000 * self.knee_row_s:.0f} ms a row")
        if self.drift:
            parts.append(f"{self.drift} {self.factor:.2f}")
        if self.apart > 1:
            parts.append(f"tasks {self.apart:.0f}x apart")
        if self.pareto:
            parts.append(f"Pareto {self.pareto:.1f}")
        if self.trials is not None:
            parts.append(f"{self.trials} trials")
        if self.sharing:
            parts.append(f"shared ({self.sharing}) {self.beside:.4f}")
        return "; ".join(parts)


def settings(seed: int, count: int) -> list[Setting]:
    """As many settings, the families in turn."""
    rng = random.Random(seed)
    return [draw(rng, FAMILIES[index % len(FAMILIES)]) for index in range(count)]


def draw(rng: random.Random, family: str) -> Setting:
    """One setting of a family."""
    longest = round(_log_uniform(rng, 1, 500))
    setting = Setting(
        family=family,
        lanes=round(_log_uniform(rng, 3, 200)),
        cores=inf if rng.random() < 0.25 else round(_log_uniform(rng, 2, 64)),
        execute_s=_log_uniform(rng, 0.02, 2.0),
        sigma=rng.uniform(0.0, 1.0),
        base_s=_log_uniform(rng, 0.005, 0.2),
        row_s=rng.choice([0.0, _log_uniform(rng, 1e-4, 0.02), rng.uniform(0.0, 0.02)]),
        max_batch=rng.choice([8, 16, 32, 64, 128]),
        concurrency=rng.choice([1, 1, 1, 2, 3]),
        reset_s=rng.choice([0.0, 0.05, _log_uniform(rng, 0.05, 5.0)]),
        is_told=rng.random() < 0.5,
        episode=(max(1, longest // 4), longest),
    )
    shape = family if family in SHAPES else rng.choice(SHAPES)
    return _vary(rng, _with_shape(rng, setting, shape))


def _with_shape(rng: random.Random, setting: Setting, shape: str) -> Setting:
    most = setting.max_batch
    if shape == "flat":
        return replace(setting, row_s=0.0)
    if shape == "knee":
        row_s = rng.uniform(0.005, 0.05)
        return replace(setting, knee=rng.randint(8, 64), knee_row_s=row_s)
    if shape == "affine":
        return setting
    padded = {
        "stairs of 2^k": [1 << power for power in range(most.bit_length())],
        "stairs of 8": [*range(8, most + 1, 8)],
        "graph shapes": [1, most, *rng.sample(range(2, most), min(most - 2, rng.randint(2, 6)))],
    }[shape]
    row_s = setting.row_s or _log_uniform(rng, 5e-4, 0.02)
    return replace(setting, padded=tuple(sorted(padded)), row_s=row_s)


def _vary(rng: random.Random, setting: Setting) -> Setting:
    """What its family is about."""
    if setting.family == "heavy tails":
        return replace(setting, pareto=rng.uniform(1.2, 2.5))
    if setting.family == "two tasks":
        return replace(setting, apart=_log_uniform(rng, 2, 40))
    if setting.family == "two signatures":
        return replace(setting, signatures=2)
    if setting.family == "replicas":
        return replace(setting, concurrency=rng.choice([2, 3]))
    if setting.family == "drift":
        drift = rng.choice(["step", "ramp"])
        return replace(setting, drift=drift, factor=_log_uniform(rng, 1 / 3, 3))
    if setting.family == "hiccup":
        return replace(setting, drift="hiccup")
    if setting.family == "resets":
        return replace(setting, reset_s=_log_uniform(rng, 0.3, 5.0))
    if setting.family == "tail of a run":
        longest = round(_log_uniform(rng, 4, 60))
        trials = round(setting.lanes * rng.uniform(1.0, 4.0))
        return replace(setting, trials=trials, episode=(max(1, longest // 4), longest))
    if setting.family == "shared":
        sharing = rng.choice(SHARING)
        if sharing == "slices":
            return replace(setting, sharing=sharing, beside=_log_uniform(rng, 0.002, 0.02))
        # All lanes together slow an inference 1.3 to 9 times.
        slower = _log_uniform(rng, 0.3, 8.0)
        return replace(setting, sharing=sharing, beside=slower / setting.lanes)
    return setting


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return exp(rng.uniform(log(low), log(high)))
