"""Conformance checks for envs: each rule is a sentence, named when it is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hocket.core.contracts.env import ABILITIES, members
from hocket.testing.episodes import (
    Bench,
    difference,
    kept_randomness,
    read,
    require_same,
)
from hocket.testing.findings import (
    Broken,
    Finding,
    Rules,
    all_broken,
    conclude,
    first_broken,
    is_same,
    require,
    try_rule,
)
from hocket.workers.spaces import Drive, check_observation_space

_SUCCESS_KEYS = ("success", "is_success")


def check_env(make: Callable[[], Any], *, seeds: Sequence[int] = (0, 1), steps: int = 20) -> None:
    """Raise ConformanceError with every rule that the envs made by `make` break.

    Plays a dozen episodes of at most `steps` random actions, on one env at a time.
    """
    conclude("The env", env_findings(make, seeds=seeds, steps=steps))


def env_findings(
    make: Callable[[], Any], *, seeds: Sequence[int] = (0, 1), steps: int = 20
) -> list[Finding]:
    """Every rule that the envs made by `make` break; none means that hocket can run them."""
    if len(set(seeds)) < 2 or steps < 2:
        raise ValueError("Two different seeds and two steps are the least that shows anything.")
    bench = Bench(make, seeds, steps)
    with kept_randomness():
        try:
            return first_broken(_BASICS, bench) or _all_broken(bench)
        finally:
            try_rule("close", bench.close)


def _all_broken(bench: Bench) -> list[Finding]:
    rules = list(_ALWAYS)
    for ability, more in _BY_ABILITY.items():
        rules += more if bench.has(ability) else []
    return all_broken([*rules, *_LAST], bench, bench.fresh)


# -- Every env -----------------------------------------------------------------------------------


def _is_env(bench: Bench) -> None:
    env = bench.fresh()
    for name in ("reset", "step", "close", "action_space"):
        require(hasattr(env, name), f"A {type(env).__name__} has no {name!r}.")


def _drives(bench: Bench) -> None:
    Drive(bench.env.action_space)


def _observes(bench: Bench) -> None:
    check_observation_space(getattr(bench.env, "observation_space", None))


def _resets(bench: Bench) -> None:
    answer = bench.env.reset(seed=bench.seeds[0])
    require(isinstance(answer, tuple) and len(answer) == 2, f"It returned {type(answer).__name__}.")
    require(isinstance(answer[1], dict), f"info is a {type(answer[1]).__name__}.")
    require(bool(read(answer[0])), "The observation is empty.")


def _steps(bench: Bench) -> None:
    bench.reset(bench.seeds[0])
    for action in bench.actions:
        answer = bench.env.step(action)
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


def _keeps_shape(bench: Bench) -> None:
    known: dict[str, tuple[tuple[int, ...], str]] | None = None
    for seed in bench.seeds:
        for step, moment in enumerate(bench.play(seed)):
            seen = {k: (a.shape, a.dtype.str) for k, a in (moment.observation or {}).items()}
            known = seen if known is None else known
            changed = sorted(set(seen.items()) ^ set(known.items()))
            require(not changed, f"At step {step} of seed {seed} {changed[:1]} changed.")


def _judges(bench: Bench) -> None:
    told: set[bool] = set()
    for moment in bench.play(bench.seeds[0])[1:]:
        keys = [key for key in _SUCCESS_KEYS if key in moment.info]
        is_end = moment.terminated or moment.truncated
        if not (is_end and keys):
            told.add(bool(keys))
        for key in keys:
            value = moment.info[key]
            array = np.asarray(value)
            is_truth = array.ndim == 0 and array.dtype.kind in "biuf" and array in (0, 1)
            require(is_truth, f"info[{key!r}] is {value!r}.")
    # Told only where it is true, failures would count as episodes with nothing to succeed at.
    require(len(told) < 2, "Some steps have it and some do not.")


def _repeats(bench: Bench) -> None:
    one, other = bench.play(bench.seeds[0]), bench.play(bench.seeds[0])
    require_same(one, other, "between two episodes of one seed")


def _forgets(bench: Bench) -> None:
    before = bench.play(bench.seeds[0])
    for seed in bench.seeds[1:]:
        bench.play(seed)
        bench.play(seed)
    require_same(before, bench.play(bench.seeds[0]), "after episodes of other seeds")


def _is_like_new(bench: Bench) -> None:
    before = bench.play(bench.seeds[0])
    bench.fresh()
    require_same(before, bench.play(bench.seeds[0]), "in a new env")


def _is_whole(bench: Bench) -> None:
    for names in map(members, ABILITIES.values()):
        there = [name for name in names if hasattr(type(bench.env), name)]
        require(len(there) in (0, len(names)), f"It has {there} of {list(names)}.")


def _closes(bench: Bench) -> None:
    env, bench.env = bench.env, None
    env.close()
    env.close()


# -- Deferred observation ------------------------------------------------------------------------


def _defers(bench: Bench) -> None:
    by_step = bench.play(bench.seeds[0])
    require_same(by_step, bench.play_deferred(bench.seeds[0], observe=1), "from those of step()")


def _is_pure(bench: Bench) -> None:
    often = bench.play_deferred(bench.seeds[0], observe=2)
    never = bench.play_deferred(bench.seeds[0], observe=0)
    require_same(often, never, "between episodes observed twice a step and not at all")
    assert often[-1].observation is not None
    key = difference(often[-1].observation, read(bench.env.observe()))
    require(key is None, f"Without looking before, the last observation has another {key}.")


# -- Snapshot ------------------------------------------------------------------------------------


def _tells_state(bench: Bench) -> None:
    bench.reset(bench.seeds[0])
    state = bench.env.get_state()
    require(
        isinstance(state, np.ndarray) and state.dtype == np.float64 and state.ndim == 1,
        f"It is a {type(state).__name__} {getattr(state, 'dtype', '')} "
        f"{getattr(state, 'shape', '')}.",
    )
    before = state.copy()
    bench.go_on(0)
    require(is_same(before, state), "It changed while the env was stepped: return a copy.")


def _returns(bench: Bench) -> None:
    done = max(1, bench.steps // 3)
    bench.reset(bench.seeds[0])
    for action in bench.actions[:done]:
        _, _, terminated, truncated, _ = bench.env.step(action)
        if terminated or truncated:
            raise Broken(f"The episode ended before step {done}: check with fewer steps.")
    state = np.array(bench.env.get_state())
    expected = bench.go_on(done)
    for begun_anew in (False, True):
        if begun_anew:
            bench.reset(bench.seeds[0])
        bench.env.set_state(state.copy())
        require(
            is_same(state, np.asarray(bench.env.get_state())),
            "get_state() after set_state() is not what was given.",
        )
        when = "after a reset with the same seed" if begun_anew else "in the same episode"
        require_same(expected, bench.go_on(done), f"from the state given back {when}")


# -- Cameras -------------------------------------------------------------------------------------


def _names_cameras(bench: Bench) -> None:
    keys = tuple(bench.env.camera_keys)
    require(len(set(keys)) == len(keys), f"{keys} has a key twice.")
    bench.env.use_cameras(keys)
    missing = sorted(set(keys) - set(bench.reset(bench.seeds[0])))
    require(not missing, f"The observation has no {missing}.")


def _selects_cameras(bench: Bench) -> None:
    keys = tuple(bench.env.camera_keys)
    bench.env.use_cameras(keys)
    whole = bench.play(bench.seeds[0])
    for chosen in ((), keys[:1], keys):
        bench.env.use_cameras(chosen)
        hidden = set(keys) - set(chosen)
        for step, (all_of_it, seen) in enumerate(
            zip(whole, bench.play(bench.seeds[0]), strict=False)
        ):
            assert all_of_it.observation is not None
            expected = {k: a for k, a in all_of_it.observation.items() if k not in hidden}
            key = difference(expected, seen.observation or {})
            require(key is None, f"With {list(chosen)} step {step} has another {key}.")
            require(all_of_it.reward == seen.reward, f"With {list(chosen)} the reward changes.")
    bench.env.use_cameras(keys)


_BASICS: Rules = (
    ("make() gives an env.", _is_env),
    ("The action space can be driven.", _drives),
    ("The observation space has fixed shapes.", _observes),
    ("reset(seed=...) returns (observation, info).", _resets),
    ("step(action) returns (observation, reward, terminated, truncated, info).", _steps),
)
_ALWAYS: Rules = (
    ("An observation keeps its keys, shapes and dtypes.", _keeps_shape),
    ("info['success'] is a truth value, told at every step, at the end, or never.", _judges),
    ("The same seed and actions give the same episode, to the bit.", _repeats),
    ("An episode does not depend on the episodes before it.", _forgets),
    ("A new env gives the same episode.", _is_like_new),
    ("An ability is whole or not there.", _is_whole),
)
_BY_ABILITY: dict[str, Rules] = {
    "deferred": (
        ("step() is advance() and then observe().", _defers),
        ("observe() is pure.", _is_pure),
    ),
    "snapshot": (
        ("get_state() is a float64 vector of the caller's own.", _tells_state),
        ("set_state() brings an earlier state back.", _returns),
    ),
    "cameras": (
        ("camera_keys are keys of the observation.", _names_cameras),
        ("use_cameras() leaves out what was not asked for, and changes nothing else.",
         _selects_cameras),
    ),
}  # fmt: skip
_LAST: Rules = (("close() may be called twice.", _closes),)
