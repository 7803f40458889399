"""Conformance checks for policies: each rule is a sentence, named when it is broken."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hocket.core.contracts.policy import Binds, Policy, Sessions
from hocket.core.data import Array, Batch, Row, Trial, noise_seed
from hocket.core.specs import ActionSpec, EnvSpec, PolicySpec
from hocket.engine.chunk_rules import check_answer, finite_rows
from hocket.testing.findings import (
    Bench,
    Finding,
    Rules,
    all_broken,
    closes,
    first_broken,
    is_close,
    is_same,
    raising,
    require,
)

_ROWS = 3
_DEADLINE_S = 300.0


def policy_findings(
    policy: Policy,
    example: Batch | Mapping[str, Any] | None = None,
    *,
    env: EnvSpec | None = None,
    tolerance: float = 1e-3,
    close: bool = False,
) -> list[Finding]:
    """Every rule that the policy breaks; none means that hocket can run it.

    `example` is a batch of two rows or more, or its stacked arrays `[B, ...]`, or None to draw
    numbers after `spec.inputs`. `env`, where given, is bound first, and is the env of all rows;
    a policy that binds is then told of others with its name. `tolerance` is what rounding
    may change where the policy does not claim to be `batch_invariant`. With `close` the policy is
    closed in the end, twice.
    """
    findings = first_broken([_has_spec], policy)
    if findings:
        return findings
    spec = policy.spec
    bench = _PolicyBench(policy, _batch(spec, example, env), env, tolerance)
    findings = first_broken([_binds, _answers], bench)
    if not findings:
        keyed = _KEYED if spec.keyed_noise else ()
        batches = _KEYED_BATCHES if spec.keyed_noise and spec.max_batch > 1 else ()
        # The last leaves a policy that breaks it bound to another env.
        last = (_keeps_envs_apart,) if spec.keyed_noise else ()
        findings = all_broken([*_ALWAYS, *keyed, *batches, *last], bench)
    return findings + (first_broken([closes], bench) if close else [])


check_policy = raising(lambda policy, *_, **__: f"Policy {type(policy).__name__}", policy_findings)


class _PolicyBench(Bench[Policy]):
    """Asks the policy in new sessions each time, so that what it keeps for one cannot show."""

    def __init__(self, policy: Policy, batch: Batch, env: EnvSpec | None, tolerance: float) -> None:
        super().__init__(lambda: policy)
        self.env = env
        size = min(len(batch.rows), policy.spec.max_batch)
        self.batch = _take(batch, range(size))
        self.other = _take(batch, range(len(batch.rows))[::-1][:size])
        """Rows in another order, or another row where one is all that the policy takes."""
        self.tolerance = tolerance
        self.is_exact = policy.spec.batch_invariant
        self._action_size = policy.spec.action_size if env is None else env.action.size
        self._sessions = itertools.count()

    def ask(self, batch: Batch) -> Array:
        """The policy's checked answer, the very array that it returned unless padded. May be asked
        on any thread."""
        rows = tuple(
            dataclasses.replace(row, session=f"check-{next(self._sessions)}") for row in batch.rows
        )
        batch = dataclasses.replace(batch, rows=rows)
        policy = self.held
        if isinstance(policy, Sessions):
            for row in rows:
                policy.begin_session(row)
        answer = policy.infer(batch)
        if isinstance(policy, Sessions):
            for row in rows:
                policy.end_session(row.session)
        return check_answer(
            answer,
            rows=len(rows),
            size=batch.size,
            action_size=self._action_size,
            chunk_length=policy.spec.chunk_length,
            name=type(policy).__name__,
        ).values

    def require_equal(self, one: Array, other: Array, detail: str) -> None:
        """Two answers must be equal: to the bit if the policy claims that, else up to rounding."""
        if self.is_exact:
            require(is_same(one, other), f"{detail} (to the bit, as batch_invariant claims).")
        else:
            require(is_close(one, other, self.tolerance), f"{detail} by more than rounding.")


def _has_spec(policy: Policy) -> None:
    """spec is a sound PolicySpec."""
    spec = policy.spec
    require(isinstance(spec, PolicySpec), f"It is a {type(spec).__name__}.")
    require(spec.chunk_length >= 0, f"chunk_length is {spec.chunk_length}.")
    for name in ("history", "max_batch", "concurrency", "action_size", "replan"):
        value = getattr(spec, name)
        is_unsaid = value is None and name in ("action_size", "replan")
        require(is_unsaid or (isinstance(value, int) and value >= 1), f"{name} is {value!r}.")
    if spec.replan is not None and spec.chunk_length:
        require(
            spec.replan <= spec.chunk_length,
            f"replan {spec.replan} is longer than a chunk of {spec.chunk_length}.",
        )
    for name in ("infer", "close"):
        require(callable(getattr(policy, name, None)), f"The policy has no {name}().")


def _binds(bench: _PolicyBench) -> None:
    """bind() takes an env's spec."""
    if bench.env is not None and isinstance(bench.held, Binds):
        bench.held.bind(bench.env)


def _answers(bench: _PolicyBench) -> None:
    """infer() answers every row with finite actions [B, T, A]."""
    for size in sorted({1, len(bench.batch.rows)}):
        values = bench.ask(_take(bench.batch, range(size)))
        require(bool(finite_rows(values).all()), "There are NaN or infinite actions.")


def _spares_batch(bench: _PolicyBench) -> None:
    """infer() leaves its batch as it was."""
    before = {key: array.copy() for key, array in bench.batch.arrays.items()}
    bench.ask(bench.batch)
    for key, array in before.items():
        require(is_same(array, bench.batch.arrays[key]), f"{key!r} changed.")


def _gives_away(bench: _PolicyBench) -> None:
    """An answer is the caller's: a later infer() does not change it."""
    answer = bench.ask(bench.batch)
    before = answer.copy()
    bench.ask(bench.other)
    require(is_same(before, answer), "Return a copy of what infer reuses.")


def _repeats(bench: _PolicyBench) -> None:
    """The same batch gets the same answer."""
    one, other = bench.ask(bench.batch), bench.ask(bench.batch)
    require(is_same(one, other), "The same batch got two answers: draw from Row.noise_seed.")


def _is_keyed(bench: _PolicyBench) -> None:
    """Noise comes from the noise seed alone."""
    rows = tuple(
        dataclasses.replace(row, attempt=row.attempt + 1, trial=row.trial._replace(repeat=9))
        for row in bench.batch.rows
    )
    moved = dataclasses.replace(bench.batch, rows=rows)
    require(
        is_same(bench.ask(bench.batch), bench.ask(moved)),
        "Another attempt with the same observation and noise seed got another answer.",
    )


def _answers_in_order(bench: _PolicyBench) -> None:
    """Row i answers row i."""
    order = range(len(bench.batch.rows))[::-1]
    straight, turned = bench.ask(bench.batch), bench.ask(_take(bench.batch, order))
    bench.require_equal(straight, turned[::-1], "In a turned batch a row's answer differs")


def _is_independent(bench: _PolicyBench) -> None:
    """A row's answer does not depend on the rest of its batch."""
    together = bench.ask(bench.batch)
    for index in range(len(bench.batch.rows)):
        alone = bench.ask(_take(bench.batch, [index]))
        bench.require_equal(together[index], alone[0], f"Alone, row {index} is answered otherwise")


def _pads(bench: _PolicyBench) -> None:
    """Padded rows change nothing for the others."""
    part = _take(bench.batch, range(len(bench.batch.rows) - 1))
    arrays = {key: np.concatenate([a, a[-1:]]) for key, a in part.arrays.items()}
    padded = Batch(arrays=arrays, rows=part.rows, pad=1)
    bench.require_equal(bench.ask(part), bench.ask(padded), "With padding, answers differ")


def _keeps_up(bench: _PolicyBench) -> None:
    """infer() may be called from other threads, spec.concurrency at once."""
    many = bench.held.spec.concurrency
    expected = bench.ask(bench.batch)
    with concurrent.futures.ThreadPoolExecutor(many) as pool:
        asked = [pool.submit(bench.ask, bench.batch) for _ in range(2 * many)]
        answers = [each.result(timeout=_DEADLINE_S) for each in asked]
    if bench.held.spec.keyed_noise:
        for answer in answers:
            bench.require_equal(expected, answer, "From another thread the answer differs")


def _keeps_envs_apart(bench: _PolicyBench) -> None:
    """What bind() tells of an env changes nothing for another whose task has the same name."""
    policy, env = bench.held, bench.env
    if env is None or not isinstance(policy, Binds):
        return
    before = bench.ask(bench.batch)
    for size in (env.action.size, env.action.size + 1):
        bound = np.full(size, 0.125)
        action = ActionSpec(
            size=size, kind="box", shape=(size,), dtype="<f4", low=-bound, high=bound
        )
        try:
            policy.bind(dataclasses.replace(env, action=action))
        except Exception:  # noqa: BLE001 - it may refuse an env in its own words
            continue
        require(
            is_same(before, bench.ask(bench.batch)),
            "Keep what is prepared for an env by its spec (Row.env), not by the task's name.",
        )


_ALWAYS: Rules = (_spares_batch, _gives_away, _keeps_up)
_KEYED: Rules = (_repeats, _is_keyed)
_KEYED_BATCHES: Rules = (_answers_in_order, _is_independent, _pads)


def _take(batch: Batch, chosen: Sequence[int]) -> Batch:
    indices = list(chosen)
    return Batch(
        arrays={key: array[indices] for key, array in batch.arrays.items()},
        rows=tuple(batch.rows[index] for index in indices),
    )


def _batch(
    spec: PolicySpec, example: Batch | Mapping[str, Any] | None, env: EnvSpec | None
) -> Batch:
    if isinstance(example, Batch):
        batch = _take(example, range(len(example.rows)))
    else:
        arrays = _drawn(spec, env) if example is None else example
        stacked = {key: np.asarray(array) for key, array in arrays.items()}
        size = len(next(iter(stacked.values())))
        task = "check" if env is None else env.task.name
        trials = [Trial(suite="check", task=task, seed=index) for index in range(size)]
        rows = tuple(
            Row(
                trial=trial,
                attempt=0,
                chunk=0,
                noise_seed=noise_seed(trial, 0),
                prompt="do the task",
                session=trial.id,
            )
            for trial in trials
        )
        batch = Batch(arrays=stacked, rows=rows)
    if env is not None:
        rows = tuple(dataclasses.replace(row, env=env) for row in batch.rows)
        batch = dataclasses.replace(batch, rows=rows)
    if len(batch.rows) < 2:
        raise ValueError("An example of at least two different rows is needed to check a policy.")
    return batch


def _drawn(spec: PolicySpec, env: EnvSpec | None) -> dict[str, Array]:
    inputs = spec.inputs if spec.inputs is not None else (env.observations if env else None)
    if not inputs:
        raise ValueError("The policy does not say what it reads (spec.inputs): give an example.")
    rng = np.random.default_rng(0)
    drawn: dict[str, Array] = {}
    for key, wanted in inputs.items():
        history = (spec.history,) if spec.history > 1 else ()
        shape = (_ROWS, *history, *(4 if size < 0 else size for size in wanted.shape))
        dtype = np.dtype(wanted.dtype)
        if dtype.kind in "iub":
            drawn[key] = rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
        else:
            drawn[key] = rng.normal(size=shape).astype(dtype)
    return drawn
