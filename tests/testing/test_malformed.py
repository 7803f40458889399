"""Envs and policies that are wrong in drawn ways: each ends in a sentence that names it, or in a
clean run; never in a traceback of hocket's, never without a word."""

from __future__ import annotations

import os
import random
import re
import secrets
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.core.data import Outcome
from hocket.errors import HocketError
from hocket.system.text import sentence

PACKAGE = str(Path(hocket.__file__).parent)
EPISODES, STEPS = 2, 12

VALUES = """
None | 0 | 1 | -3 | 2.5 | 1e400 | float("nan") | 1 + 2j | "no" | "" | b"bytes" | True | False
[] | () | {} | set() | [1, 2] | (1, "a") | {"a": {"b": 1}} | {1: 2} | {"": np.zeros(2)} | object()
np.zeros(2) | np.zeros(3) | np.zeros((2, 2)) | np.zeros(0) | np.float32(0) | np.array("text")
np.array([None, 1]) | np.array([True, False]) | np.zeros(2, complex) | np.zeros((4, 4, 3), np.uint8)
np.zeros((3, 4, 4), np.uint8) | [[1, 2], [3]] | [np.zeros(2), "a"] | (x for x in [1]) | lambda: 1
np.array([np.nan, 1.0]) | np.datetime64("now") | Exception("value") | type | range(3) | 10**400
"x" * 100_000 | np.ma.masked | np.zeros(2)[None, None] | {"state": np.zeros(2), "more": "text"}
{"prompt": 3} | {"prompt": "go"} | {"a/b": np.zeros(2), "c": None} | np.zeros(2, "S3")
NotImplemented
Loop() | Unprintable() | Broken()
""".replace("\n", "|").split("|")
VALUES = [value.strip() for value in VALUES if value.strip()]

RAISES = """
raise ValueError("the arm is stuck") | raise KeyError("arm") | raise KeyError | raise Exception
raise Exception({"a": 1}, [2], None) | raise Exception(np.zeros(3)) | raise Mute() | raise Worse()
raise Base("base") | raise SystemExit | raise SystemExit(0) | raise SystemExit("no licence")
sys.exit(3)
raise GeneratorExit("over") | raise StopIteration(3) | raise AssertionError | raise MemoryError
raise UnicodeDecodeError("utf-8", b"x", 0, 1, "bad") | raise Exception("x" * 3_000_000) | deep(0)
raise Exception("\\x1b[31mred\\udc80") | raise Exception("two\\nlines")
raise OSError(2, "gone", "f.txt")
raise ExceptionGroup("many", [ValueError("one"), TypeError("two")]) | 1 / 0 | undefined_name
raise RuntimeError("outer") from ValueError("inner") | int("x") | [][3] | None.attribute | assert 0
raise ConnectionError | raise NotImplementedError | raise TypeError(3) | raise EOFError
raise ConfigError("mine")
raise BrokenPipeError | raise TimeoutError | chained()
raise type("Odd Name", (Exception,), {})("odd")
""".replace("\n", "|").split("|")
RAISES = [line.strip() for line in RAISES if line.strip()]

HEAD = """
import sys
import gymnasium, numpy as np
from gymnasium import spaces
import hocket
from hocket import PolicySpec, ArraySpec

class Mute(Exception):
    def __str__(self): raise ValueError("cannot say")
class Worse(Exception):
    def __str__(self): raise SystemExit(9)
    def __repr__(self): return 3
class Base(BaseException): ...
class ConfigError(Exception): ...
class Unprintable:
    def __repr__(self): raise ValueError("cannot be shown")
class Loop(dict):
    def __init__(self): self["self"] = self
class Broken:
    def __getattr__(self, name): raise RuntimeError("no " + name)
def deep(n): return deep(n + 1)
def chained():
    try: raise ValueError("first")
    except ValueError: raise RuntimeError("second")
"""

ENV = """
class Env(gymnasium.Env):
    {space_name} = {observation_space}
    {action_name} = {action_space}
    max_steps = {max_steps}
    {attribute}
    def __init__(self{init_args}):
        self.count = 0
        {init}
    def {reset_name}(self{reset_args}):
        {reset}
        return {reset_answer}
    def {step_name}(self{step_args}):
        self.count += 1
        if self.count > {after}:
            {step}
            return {step_answer}
        return np.zeros(2), 0.0, False, False, {{"success": False}}
    def close(self):
        {close}
"""
ENV_PARTS = {
    "space_name": "observation_space",
    "observation_space": "spaces.Box(-9, 9, (2,), np.float64)",
    "action_name": "action_space",
    "action_space": "spaces.Box(-1, 1, (2,), np.float64)",
    "max_steps": f"{STEPS}",
    "attribute": "",
    "init_args": "",
    "init": "...",
    "reset_name": "reset",
    "reset_args": ", *, seed=None, options=None",
    "reset": "...",
    "reset_answer": "np.zeros(2), {}",
    "step_name": "step",
    "step_args": ", action",
    "after": "0",
    "step": "...",
    "step_answer": 'np.zeros(2), 0.0, False, False, {"success": False}',
    "close": "...",
}

POLICY = """
class Policy:
    {spec_name} = {spec}
    {attribute}
    def __init__(self{init_args}):
        self.count = 0
        {init}
    def {infer_name}(self{infer_args}):
        self.count += 1
        if self.count > {after}:
            {infer}
            return {answer}
        return np.zeros((batch.size, 4, 2))
    def {close_name}(self{close_args}):
        {close}
"""
POLICY_PARTS = {
    "spec_name": "spec",
    "spec": "PolicySpec(chunk_length=4, action_size=2)",
    "attribute": "",
    "init_args": "",
    "init": "...",
    "infer_name": "infer",
    "infer_args": ", batch",
    "after": "0",
    "infer": "...",
    "answer": "np.zeros((batch.size, 4, 2))",
    "close_name": "close",
    "close_args": "",
    "close": "...",
}
SPACES = """
None | 3 | "Box" | spaces.Text(3) | spaces.Discrete(3) | spaces.MultiBinary(2)
spaces.MultiDiscrete([2, 3])
spaces.Box(-1, 1, (0,)) | spaces.Box(-1, 1, (2, 2)) | spaces.Box(-np.inf, np.inf, (2,))
spaces.Box(0, 255, (4, 4, 3), np.uint8)
spaces.Tuple([spaces.Discrete(2)]) | spaces.Dict({"a": spaces.Box(-1, 1, (2,))}) | spaces.Dict({})
spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})
spaces.Sequence(spaces.Discrete(2)) | Broken() | Loop()
spaces.Box | type("Box", (), {"low": 0})()
type("Box", (), {"low": "a", "high": 1, "shape": 3, "dtype": "x"})()
spaces.Graph(spaces.Discrete(2), None)
spaces.Box(1, 1, (2,)) | spaces.Box(-1, 1, ()) | type("Discrete", (), {"n": -3})()
spaces.OneOf([spaces.Discrete(2)])
""".replace("\n", "|").split("|")
SPACES = [space.strip() for space in SPACES if space.strip()]
SPECS = """
None | 3 | "spec" | {} | PolicySpec | PolicySpec() | PolicySpec(chunk_length=-1)
PolicySpec(chunk_length="8")
PolicySpec(chunk_length=5, action_size=2) | PolicySpec(chunk_length=4, action_size=7)
PolicySpec(chunk_length=4, history=3)
PolicySpec(chunk_length=4, inputs={"nothing": ArraySpec(shape=(2,), dtype="")})
PolicySpec(chunk_length=4, inputs=("observation/state",))
PolicySpec(chunk_length=4, inputs={"observation/state": ArraySpec(shape=(3,), dtype="float32")})
PolicySpec(chunk_length=4, inputs={"observation/state": 3})
PolicySpec(chunk_length=4, cameras=("front",)) | PolicySpec(chunk_length=4, cameras="front")
PolicySpec(chunk_length=4, max_batch=0)
PolicySpec(chunk_length=4, replan=9) | PolicySpec(chunk_length=4, concurrency=0)
PolicySpec(chunk_length=4, control_rate="x")
PolicySpec(chunk_length=4, history=0) | PolicySpec(chunk_length=4.5)
PolicySpec(chunk_length=4, batch_sizes=(0,)) | property(lambda self: 1 / 0)
property(lambda self: self.gone) | property(lambda self: sys.exit(3))
PolicySpec(chunk_length=None) | PolicySpec(chunk_length=4, replan=-1)
""".replace("\n", "|").split("|")
SPECS = [spec.strip() for spec in SPECS if spec.strip()]
SIGNATURES = [
    "",
    ", *",
    ", a, b",
    ", *args",
    ", **named",
    ", seed",
    ", *, action",
    ", self_",
    ", a=1",
]
ATTRIBUTES = [
    "success_rule = 'sometimes'",
    "success_rule = None",
    "prompt = 3",
    "notes = 3",
    "facts = 3",
    "metadata = None",
    "metadata = {'render_fps': 'many'}",
    "control_rate = 'fast'",
    "max_episode_steps = 'x'",
    "spec = 3",
    "unwrapped = property(lambda self: 1 / 0)",
    "prompt = property(lambda self: 1 / 0)",
    "notes = property(lambda self: sys.exit(3))",
    "advance = None",
    "advance = lambda self, action: 3\n    observe = lambda self: np.zeros(2)",
    "advance = lambda self, action: (0, 0, 0)\n    observe = lambda self: None",
    "advance = lambda self, action: (0., False, False, {})\n    observe = lambda self: 1 / 0",
    "get_state = lambda self: 'x'\n    set_state = None",
    "env = property(lambda self: self)",
    "__getattr__ = lambda self, name: 1 / 0",
]
POLICY_ATTRIBUTES = [
    "bind = 3",
    "bind = lambda self: None",
    "bind = lambda self, spec: 1 / 0",
    "bind = lambda self, spec: sys.exit(3)",
    "begin_session = lambda self, row: 1 / 0\n    end_session = lambda self, s: None",
    "begin_session = lambda self, row: sys.exit(3)\n    end_session = lambda self, s: None",
    "begin_session = lambda self, row: None\n    end_session = lambda self, s: 1 / 0",
    "files = 3",
    "files = ['absent.bin']",
    "reads_device_arrays = 3",
    "reconnects = None",
    "is_stateful = 3",
]


class Kind:
    """A drawn malformation: what is wrong, in words, and the module that has it."""

    def __init__(self, name: str, of: str, **parts: str) -> None:
        self.name, self.of = name, of
        template, known = (ENV, ENV_PARTS) if of == "env" else (POLICY, POLICY_PARTS)
        sound = {"env": POLICY.format(**POLICY_PARTS), "policy": ENV.format(**ENV_PARTS)}[of]
        self.text = HEAD + template.format(**{**known, **parts}) + sound


def kinds(rng: random.Random, count: int) -> Iterator[Kind]:
    """Different malformations, each family about equally often."""
    families = [
        lambda: _env_raises(rng),
        lambda: _env_raises(rng),
        lambda: _env_answers(rng),
        lambda: _env_answers(rng),
        lambda: _env_answers(rng),
        lambda: _env_is_odd(rng),
        lambda: _policy_raises(rng),
        lambda: _policy_answers(rng),
        lambda: _policy_is_odd(rng),
    ]
    seen: set[str] = set()
    while len(seen) < count:
        kind = rng.choice(families)()
        if kind.text not in seen:
            seen.add(kind.text)
            yield kind


def _env_raises(rng: random.Random) -> Kind:
    where, what = rng.choice(["init", "reset", "step", "step", "close"]), rng.choice(RAISES)
    after = rng.choice(["0", "0", "5", f"{STEPS + 2}"])
    return Kind(f"env: {where} does `{what}` after {after}", "env", **{where: what, "after": after})


def _env_answers(rng: random.Random) -> Kind:
    value, after = rng.choice(VALUES), rng.choice(["0", "3", f"{STEPS + 2}"])
    if rng.random() < 0.3:
        answer = rng.choice([value, f"({value}, {{}})", f"(np.zeros(2), {value})", f"({value},)"])
        return Kind(f"env: reset answers {answer}", "env", reset_answer=answer)
    parts = ["np.zeros(2)", "0.0", "False", "False", '{"success": False}']
    if rng.random() < 0.2:
        parts = rng.choice([parts[:3], parts[:4], [*parts, "0"], [value], [], parts[::-1]])
    else:
        parts[rng.randrange(5)] = value
    answer = f"({', '.join(parts)},)" if parts else value
    return Kind(f"env: step answers {answer} after {after}", "env", step_answer=answer, after=after)


def _env_is_odd(rng: random.Random) -> Kind:
    part, choices = rng.choice(
        [
            ("action_space", SPACES),
            ("action_space", SPACES),
            ("observation_space", SPACES),
            ("observation_space", VALUES),
            ("action_name", ["actions"]),
            ("space_name", ["observations"]),
            ("step_name", ["advance_", "reset_"]),
            ("reset_name", ["begin"]),
            ("step_args", SIGNATURES),
            ("reset_args", SIGNATURES),
            (
                "init_args",
                [", size", ", size: int", ", *, a: 'Nowhere' = 3", ", *args", ", **named"],
            ),
            ("max_steps", VALUES),
            ("attribute", ATTRIBUTES),
            ("attribute", ATTRIBUTES),
        ]
    )
    value = rng.choice(choices)
    return Kind(f"env: {part} is {value}", "env", **{part: value})


def _policy_raises(rng: random.Random) -> Kind:
    where, what = rng.choice(["init", "infer", "infer", "close"]), rng.choice(RAISES)
    after = rng.choice(["0", "0", "6"])
    return Kind(f"policy: {where} does `{what}`", "policy", **{where: what, "after": after})


def _policy_answers(rng: random.Random) -> Kind:
    shapes = [
        f"np.zeros(({a}, {b}, {c}))"
        for a, b, c in [("batch.size", 4, 3), ("batch.size", 3, 2), (7, 4, 2), ("batch.size", 0, 2)]
    ]
    odd = [
        "np.full((batch.size, 4, 2), np.nan)",
        "np.full((batch.size, 4, 2), 1e300)",
        "np.zeros((batch.size, 4, 2), complex)",
        "np.zeros((batch.size, 4, 2), object)",
        "np.zeros((batch.size, 4, 2)).tolist()",
        "np.zeros((batch.size, 4, 2), bool)",
        "hocket.Actions(None)",
        "hocket.Actions(np.zeros((batch.size, 4, 2)), {'a': 3})",
        "hocket.Actions(np.zeros((batch.size, 4, 2)), 'extras')",
        "hocket.Actions(np.zeros((batch.size, 4, 2)), {}, 'version')",
        "hocket.Actions(np.zeros((batch.size, 4, 2)), {}, 3, 7)",
        "batch",
        "batch.arrays['state']",
        "batch.arrays['observation/state'].__iadd__(1)",
        "batch.rows[0].nothing",
    ]
    answer, after = rng.choice(shapes + odd + VALUES), rng.choice(["0", "6"])
    return Kind(f"policy: infer answers {answer}", "policy", answer=answer, after=after)


def _policy_is_odd(rng: random.Random) -> Kind:
    part, choices = rng.choice(
        [
            ("spec", SPECS),
            ("spec", SPECS),
            ("spec_name", ["specs"]),
            ("infer_name", ["act", "__call__"]),
            ("infer_args", [", batch, more", ", *, batch", ", batch=None, *args"]),
            ("close_name", ["end"]),
            ("close_args", [", now"]),
            ("init_args", [", size", ", *args", ", size: int"]),
            ("attribute", POLICY_ATTRIBUTES),
            ("attribute", POLICY_ATTRIBUTES),
        ]
    )
    value = rng.choice(choices)
    return Kind(f"policy: {part} is {value}", "policy", **{part: value})


def flaws(text: str, kind: Kind) -> list[str]:
    """What is wrong with the words that a user is told of a malformation."""
    found = []
    if re.search(rf'File "{re.escape(PACKAGE)}', text) or "/hocket-path/" in text:
        found.append("frames of hocket's")
    if "Traceback (most recent call last)" in text:
        found.append("a traceback")
    if re.search(r"\bprobe\b", text):
        found.append("the word probe")
    if text and not re.search(r"\benv\b|\b[Pp]olicy\b|Env\b|Policy|reset|step", text):
        found.append("it names neither env nor policy")
    if len(text) > 100_000:
        found.append(f"{len(text):,} characters")
    return found


def told(kind: Kind, path: Path, **settings: Any) -> str:
    """What is said of a malformation where it is evaluated; empty where the run is clean."""
    path.write_text(kind.text)
    try:
        report = hocket.evaluate(
            env=f"{path}:Env",
            policy=f"{path}:Policy",
            episodes=EPISODES,
            retries=0,
            progress=False,
            **{"lanes": 1, "max_steps": STEPS, **settings},
        )
    except HocketError as error:
        return str(error) or "-- an error without a word"
    finally:
        sys.modules.pop(str(path), None)
    errors = [one.error or "-- no text" for one in report.episodes if one.outcome is Outcome.ERROR]
    if not report.complete and not errors:
        return "-- an incomplete run without a word"
    return "\n".join(errors)


def look_at(tmp_path: Path, count: int, **settings: Any) -> None:
    """Draw so many malformations, and evaluate each; every one that is not told well is shown."""
    seed, began = secrets.randbits(32), time.perf_counter()
    failed = []
    for number, kind in enumerate(kinds(random.Random(seed), count)):
        try:
            words = told(kind, tmp_path / f"malformed_{number}.py", **settings)
            wrong = flaws(words, kind)
            if words.startswith("-- "):
                wrong.append("silent")
        except BaseException as error:  # noqa: BLE001 - what came through is what is looked for
            last = traceback.extract_tb(error.__traceback__)[-4:]
            places = " ".join(f"{Path(f.filename).name}:{f.lineno}" for f in last)
            words, wrong = f"{sentence(error)} at {places}", ["it is no error of hocket's"]
        if wrong:
            failed.append(f"{kind.name}\n   {', '.join(wrong)}: {textwrap.shorten(words, 300)}")
    shown = "\n".join(failed)
    sys.stdout.write(f"seed {seed}: {count} kinds in {time.perf_counter() - began:.1f} s\n")
    assert not failed, f"seed {seed}: {len(failed)} of {count}\n{shown}"


def test_every_malformation_is_told_in_words_or_runs(tmp_path: Path) -> None:
    look_at(tmp_path, int(os.environ.get("N", "200")))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "settings",
    [{"lanes": 2}, {"lanes": 1, "env_python": sys.executable}, {"lanes": "auto"}],
    ids=["processes", "another interpreter", "lanes that are counted"],
)
def test_every_malformation_is_told_where_envs_run_in_processes(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    look_at(tmp_path, int(os.environ.get("N", "60")), **settings)
