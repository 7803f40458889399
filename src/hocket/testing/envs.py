"""Conformance checks for envs and suites: each rule is a sentence, named when it is broken."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np

from hocket.core.contracts.env import ABILITIES, Suite, abilities_of, members
from hocket.core.data import SuccessRule
from hocket.core.outcomes import Goals
from hocket.core.specs import TaskInfo
from hocket.testing.findings import (
    Broken,
    EnvBench,
    Finding,
    Moment,
    Rules,
    closes,
    difference,
    examine,
    first_broken,
    is_same,
    raising,
    read,
    require,
    require_one_shape,
    require_same,
)
from hocket.workers.env.spaces import Drive, check_observation_space
from hocket.workers.inline import Randomness
from hocket.workers.suites import with_details


def env_findings(
    make: Callable[[], Any], *, seeds: Sequence[int] = (0, 1), steps: int = 20
) -> list[Finding]:
    """Every rule that the envs made by `make` break; none means that hocket can run them.

    Plays a dozen episodes of at most `steps` random actions, on one env at a time.
    """
    if len(set(seeds)) < 2 or steps < 2:
        raise ValueError("Two different seeds and two steps are the least that shows anything.")
    bench = EnvBench(make, seeds, steps)
    with Randomness().apart():
        return examine(bench, _BASICS, lambda: _rules_for(bench))


def suite_findings(
    suite: Suite,
    *,
    tasks: Sequence[str] | None = None,
    seeds: Sequence[int] = (0, 1),
    steps: int = 20,
) -> list[Finding]:
    """Every rule that a suite breaks, or the envs of these tasks (None takes the first task)."""
    findings = first_broken([_lists_tasks], suite)
    if findings:
        return findings
    findings = [*first_broken([_is_steady], suite), *first_broken([_refuses], suite)]
    for task in [suite.tasks()[0].name] if tasks is None else tasks:
        found = env_findings(functools.partial(suite.make, task), seeds=seeds, steps=steps)
        findings += [Finding(each.rule, f"(task {task!r}) {each.detail}") for each in found]
    return findings


check_env = raising("The env", env_findings)
check_suite = raising("The suite", suite_findings)


# -- Every env -----------------------------------------------------------------------------------


def _is_env(bench: EnvBench) -> None:
    """make() gives an env."""
    env = bench.fresh()
    for name in ("reset", "step", "close", "action_space"):
        require(hasattr(env, name), f"A {type(env).__name__} has no {name!r}.")


def _drives(bench: EnvBench) -> None:
    """The action space can be driven."""
    Drive(bench.held.action_space)


def _observes(bench: EnvBench) -> None:
    """The observation space has fixed shapes."""
    check_observation_space(getattr(bench.held, "observation_space", None))


def _resets(bench: EnvBench) -> None:
    """reset(seed=...) returns (observation, info)."""
    answer = bench.held.reset(seed=bench.seeds[0])
    require(isinstance(answer, tuple) and len(answer) == 2, f"It returned {type(answer).__name__}.")
    require(isinstance(answer[1], dict), f"info is a {type(answer[1]).__name__}.")
    require(bool(read(answer[0])), "The observation is empty.")


def _steps(bench: EnvBench) -> None:
    """step(action) returns (observation, reward, terminated, truncated, info)."""
    bench.reset(bench.seeds[0])
    for action in bench.actions:
        answer = bench.held.step(action)
        require(
            isinstance(answer, tuple) and len(answer) == 5,
            f"It returned {len(answer) if isinstance(answer, tuple) else type(answer).__name__}.",
        )
        _, reward, terminated, truncated, info = answer
        require(np.ndim(reward) == 0 and bool(np.isfinite(reward)), f"The reward is {reward!r}.")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            require(isinstance(flag, (bool, np.bool_)), f"{name} is {flag!r}, not a bool.")
        require(isinstance(info, dict), f"info is a {type(info).__name__}.")
        if terminated or truncated:
            break


def _keeps_shape(bench: EnvBench) -> None:
    """An observation keeps its keys, shapes and dtypes."""
    require_one_shape([bench.play(seed) for seed in bench.seeds])


def _judges(bench: EnvBench) -> None:
    """info['success'] is a truth value, or several, told at every step, at the end, or never."""
    told: set[bool] = set()
    goals, task = Goals(), with_details(TaskInfo(name="the env"), bench.held)
    for moment in bench.play()[1:]:
        is_told = goals.outcome(moment.info, task) is not None
        is_end = moment.terminated or moment.truncated
        if not (is_end and is_told):
            told.add(is_told)
    # Told only where it is true, failures would count as episodes with nothing to succeed at.
    require(len(told) < 2, "Some steps have it and some do not.")


def _repeats(bench: EnvBench) -> None:
    """The same seed and actions give the same episode, to the bit."""
    require_same(bench.play(), bench.play(), "between two episodes of one seed")


def _forgets(bench: EnvBench) -> None:
    """An episode does not depend on the episodes before it."""
    before = bench.play()
    for seed in bench.seeds[1:]:
        bench.play(seed)
        bench.play(seed)
    require_same(before, bench.play(), "after episodes of other seeds")


def _is_like_new(bench: EnvBench) -> None:
    """A new env gives the same episode."""
    before = bench.play()
    bench.fresh()
    require_same(before, bench.play(), "in a new env")


def _is_whole(bench: EnvBench) -> None:
    """An ability is whole or not there."""
    for names in map(members, ABILITIES.values()):
        there = [name for name in names if hasattr(type(bench.held), name)]
        require(len(there) in (0, len(names)), f"It has {there} of {list(names)}.")


# -- Deferred observation ------------------------------------------------------------------------


def _defers(bench: EnvBench) -> None:
    """step() is advance() and then observe()."""
    require_same(bench.play(), bench.play(looks=1), "from those of step()")


def _is_pure(bench: EnvBench) -> None:
    """observe() is pure."""
    often, never = bench.play(looks=2), bench.play(looks=0)
    require_same(often, never, "between episodes observed twice a step and not at all")
    key = difference(often[-1].observation or {}, read(bench.held.observe()))
    require(key is None, f"Without looking before, the last observation has another {key}.")


# -- Snapshot ------------------------------------------------------------------------------------


def _tells_state(bench: EnvBench) -> None:
    """get_state() is a float64 vector of the caller's own."""
    bench.reset(bench.seeds[0])
    state = bench.held.get_state()
    require(
        isinstance(state, np.ndarray) and state.dtype == np.float64 and state.ndim == 1,
        f"It is a {type(state).__name__} {getattr(state, 'dtype', '')} "
        f"{getattr(state, 'shape', '')}.",
    )
    before = state.copy()
    bench.go_on(0)
    require(is_same(before, state), "It changed while the env was stepped: return a copy.")


def _returns(bench: EnvBench) -> None:
    """set_state() brings an earlier state back."""
    done = max(1, bench.steps // 3)
    bench.reset(bench.seeds[0])
    for action in bench.actions[:done]:
        raw, _, terminated, truncated, _ = bench.held.step(action)
        if terminated or truncated:
            raise Broken(f"The episode ended before step {done}: check with fewer steps.")
    state = np.array(bench.held.get_state())
    if not getattr(bench.held, "resumes_exactly", True):
        before = read(raw)
        bench.reset(bench.seeds[0])
        bench.held.set_state(state)
        for key, array in read(bench.held.observe()).items():
            share = np.mean(array != before[key]) if array.ndim == 3 else 0.0
            require(share <= 1e-3, f"{share:.2%} of {key!r} are not those of the state's moment.")
        return
    expected = bench.go_on(done)
    for begun_anew in (False, True):
        if begun_anew:
            bench.reset(bench.seeds[0])
        bench.held.set_state(state.copy())
        require(
            is_same(state, np.asarray(bench.held.get_state())),
            "get_state() after set_state() is not what was given.",
        )
        when = "after a reset with the same seed" if begun_anew else "in the same episode"
        require_same(expected, bench.go_on(done), f"from the state given back {when}")


# -- Cameras -------------------------------------------------------------------------------------


def _names_cameras(bench: EnvBench) -> None:
    """camera_keys are keys of the observation."""
    keys = tuple(bench.held.camera_keys)
    require(len(set(keys)) == len(keys), f"{keys} has a key twice.")
    bench.held.use_cameras(keys)
    missing = sorted(set(keys) - set(bench.reset(bench.seeds[0])))
    require(not missing, f"The observation has no {missing}.")


def _selects_cameras(bench: EnvBench) -> None:
    """use_cameras() leaves out what was not asked for, and changes nothing else."""
    keys = tuple(bench.held.camera_keys)
    bench.held.use_cameras(keys)
    whole = bench.play()
    for chosen in ((), keys[:1], keys):
        bench.held.use_cameras(chosen)
        hidden = set(keys) - set(chosen)
        for step, (full, seen) in enumerate(zip(whole, bench.play(), strict=False)):
            expected = {k: a for k, a in (full.observation or {}).items() if k not in hidden}
            key = difference(expected, seen.observation or {})
            require(key is None, f"With {list(chosen)} step {step} has another {key}.")
            require(full.reward == seen.reward, f"With {list(chosen)} the reward changes.")
    bench.held.use_cameras(keys)


# -- Looks for people, and holding ---------------------------------------------------------------


def _looks_alike(bench: EnvBench) -> None:
    """use_quality() changes pictures alone, and `full` brings them back."""
    whole = bench.play()
    bench.held.use_quality("look")
    cheap = bench.play()
    bench.held.use_quality("full")
    require_one_shape([whole, cheap])
    require_same(_without_pictures(whole), _without_pictures(cheap), "rendered for people")
    require_same(whole, bench.play(), "after `full` was asked for again")


def _without_pictures(moments: Sequence[Moment]) -> list[Moment]:
    return [
        moment._replace(
            observation={k: a for k, a in (moment.observation or {}).items() if a.ndim < 3}
        )
        for moment in moments
    ]


def _holds(bench: EnvBench) -> None:
    """hold_action() gives an action that the env can execute, after a reset and after a step."""
    shape = np.shape(bench.actions[0])
    bench.reset(bench.seeds[0])
    for last, when in ((None, "after a reset"), (bench.actions[0], "after a step")):
        action = bench.held.hold_action(last)
        require(
            np.shape(action) == shape,
            f"Its action {when} has the shape {np.shape(action)}, not {shape}.",
        )
        require(bool(np.isfinite(action).all()), f"Its action {when} is not finite.")
        bench.held.step(action)


_BASICS: Rules = (_is_env, _drives, _observes, _resets, _steps)
_ALWAYS: Rules = (_keeps_shape, _judges, _repeats, _forgets, _is_like_new, _is_whole)
_BY_ABILITY: dict[str, Rules] = {
    "deferred": (_defers, _is_pure),
    "snapshot": (_tells_state, _returns),
    "cameras": (_names_cameras, _selects_cameras),
    "quality": (_looks_alike,),
    "hold": (_holds,),
}


def _rules_for(bench: EnvBench) -> Rules:
    # As a worker would find them.
    able = [rule for ability in abilities_of(bench.held) for rule in _BY_ABILITY[ability]]
    return [*_ALWAYS, *able, closes]


# -- Suites --------------------------------------------------------------------------------------


def _lists_tasks(suite: Suite) -> None:
    """tasks() lists sound TaskInfo, each name once."""
    tasks = suite.tasks()
    require(bool(tasks), "There are none.")
    for task in tasks:
        require(isinstance(task, TaskInfo), f"{task!r} is no TaskInfo.")
        require(bool(task.name) and isinstance(task.name, str), f"{task!r} has no name.")
        require(isinstance(task.prompt, str), f"The prompt of {task.name!r} is {task.prompt!r}.")
        require(task.max_steps is None or task.max_steps >= 1, f"{task.name!r}: max_steps.")
        require(task.control_rate is None or task.control_rate > 0, f"{task.name!r}: control_rate.")
        require(
            task.success_rule in get_args(SuccessRule),
            f"The success_rule of {task.name!r} is {task.success_rule!r}.",
        )
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"{twice} is there more than once.")


def _is_steady(suite: Suite) -> None:
    """tasks() says the same each time."""
    require(list(suite.tasks()) == list(suite.tasks()), "Two calls differ.")


def _refuses(suite: Suite) -> None:
    """make() refuses a task that is not in tasks()."""
    try:
        env = suite.make("no such task, surely")
    except Exception:  # noqa: BLE001 - how it refuses is the suite's own affair
        return
    env.close()
    raise Broken("It made an env.")
