"""Conformance checks for policies: each rule is a sentence, named when it is broken."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hocket.core.contracts.policy import Binds, Policy, Sessions
from hocket.core.data import Array, Batch, EnvSpec, PolicySpec, Row, Trial, noise_seed
from hocket.engine.chunk_rules import check_answer, finite_rows
from hocket.testing.findings import Finding, conclude, is_close, is_same, require, try_rule

_ROWS = 3
_DEADLINE_S = 300.0


def check_policy(
    policy: Policy,
    example: Batch | Mapping[str, Any] | None = None,
    *,
    env: EnvSpec | None = None,
    tolerance: float = 1e-3,
    close: bool = False,
) -> None:
    """Raise ConformanceError with every rule that the policy breaks.

    `example` is a batch of two rows or more, or its stacked arrays `[B, ...]`, or None to draw
    numbers after `spec.inputs`. `env`, where given, is bound first. `tolerance` is what rounding
    may change where the policy does not claim to be `batch_invariant`. With `close` the policy is
    closed in the end, twice.
    """
    findings = policy_findings(policy, example, env=env, tolerance=tolerance, close=close)
    conclude(f"Policy {type(policy).__name__}", findings)


def policy_findings(
    policy: Policy,
    example: Batch | Mapping[str, Any] | None = None,
    *,
    env: EnvSpec | None = None,
    tolerance: float = 1e-3,
    close: bool = False,
) -> list[Finding]:
    """Every rule that the policy breaks; none means that hocket can run it."""
    findings = try_rule("spec is a sound PolicySpec.", functools.partial(_spec, policy))
    if findings:
        return findings
    if env is not None and isinstance(policy, Binds):
        findings = try_rule("bind() takes an env's spec.", functools.partial(policy.bind, env))
    trial = _Examination(policy, _batch(policy.spec, example, env), env, tolerance)
    findings = findings or try_rule(_BASIC[0], functools.partial(_BASIC[1], trial))
    if not findings:
        for sentence, rule, applies in _RULES:
            if applies(policy.spec):
                findings += try_rule(sentence, functools.partial(rule, trial))
    if close:
        findings += try_rule("close() may be called twice.", functools.partial(_close, policy))
    return findings


class _Examination:
    """Asks the policy in sessions of its own, so that what it keeps for one cannot show in the
    next."""

    def __init__(self, policy: Policy, batch: Batch, env: EnvSpec | None, tolerance: float) -> None:
        self.policy = policy
        size = min(len(batch.rows), policy.spec.max_batch)
        self.batch = _take(batch, range(size))
        self.other = _take(batch, range(len(batch.rows))[::-1][:size])
        """Rows in another order, or another row where one is all that the policy takes."""
        self.tolerance = tolerance
        self.is_exact = policy.spec.batch_invariant
        self._action_size = policy.spec.action_size if env is None else env.action.size
        self._asked = 0

    def ask(self, batch: Batch, *, as_given: bool = False) -> Array:
        """The policy's checked answer, the very array that it returned unless padded."""
        if not as_given:
            self._asked += 1
            rows = tuple(
                dataclasses.replace(row, session=f"check-{self._asked}-{index}")
                for index, row in enumerate(batch.rows)
            )
            batch = dataclasses.replace(batch, rows=rows)
        if isinstance(self.policy, Sessions):
            for row in batch.rows:
                self.policy.begin_session(row)
        answer = self.policy.infer(batch)
        if isinstance(self.policy, Sessions):
            for row in batch.rows:
                self.policy.end_session(row.session)
        return check_answer(
            answer,
            rows=len(batch.rows),
            size=batch.size,
            action_size=self._action_size,
            chunk_length=self.policy.spec.chunk_length,
            name=type(self.policy).__name__,
        ).values

    def require_equal(self, one: Array, other: Array, detail: str) -> None:
        """Two answers must be equal: to the bit if the policy claims that, else up to rounding."""
        if self.is_exact:
            require(is_same(one, other), f"{detail} (to the bit, as batch_invariant claims).")
        else:
            require(is_close(one, other, self.tolerance), f"{detail} by more than rounding.")


def _spec(policy: Policy) -> None:
    spec = policy.spec
    require(isinstance(spec, PolicySpec), f"It is a {type(spec).__name__}.")
    require(spec.chunk_length >= 0, f"chunk_length is {spec.chunk_length}.")
    for name in ("history", "max_batch", "concurrency"):
        value = getattr(spec, name)
        require(isinstance(value, int) and value >= 1, f"{name} is {value!r}.")
    for name in ("action_size", "replan"):
        value = getattr(spec, name)
        require(value is None or (isinstance(value, int) and value >= 1), f"{name} is {value!r}.")
    if spec.replan is not None and spec.chunk_length:
        require(
            spec.replan <= spec.chunk_length,
            f"replan {spec.replan} is longer than a chunk of {spec.chunk_length}.",
        )
    for name in ("infer", "close"):
        require(callable(getattr(policy, name, None)), f"The policy has no {name}().")


def _answers(trial: _Examination) -> None:
    for size in sorted({1, len(trial.batch.rows)}):
        values = trial.ask(_take(trial.batch, range(size)))
        require(bool(finite_rows(values).all()), "There are NaN or infinite actions.")


def _spares_batch(trial: _Examination) -> None:
    before = {key: array.copy() for key, array in trial.batch.arrays.items()}
    trial.ask(trial.batch)
    for key, array in before.items():
        require(is_same(array, trial.batch.arrays[key]), f"{key!r} changed.")


def _gives_away(trial: _Examination) -> None:
    answer = trial.ask(trial.batch)
    before = answer.copy()
    trial.ask(trial.other)
    require(is_same(before, answer), "Return a copy of what infer reuses.")


def _repeats(trial: _Examination) -> None:
    one, other = trial.ask(trial.batch), trial.ask(trial.batch)
    require(is_same(one, other), "The same batch got two answers: draw from Row.noise_seed.")


def _is_keyed(trial: _Examination) -> None:
    rows = tuple(
        dataclasses.replace(row, attempt=row.attempt + 1, trial=row.trial._replace(repeat=9))
        for row in trial.batch.rows
    )
    moved = dataclasses.replace(trial.batch, rows=rows)
    require(
        is_same(trial.ask(trial.batch), trial.ask(moved)),
        "Another attempt with the same observation and noise seed got another answer.",
    )


def _answers_in_order(trial: _Examination) -> None:
    order = range(len(trial.batch.rows))[::-1]
    straight, turned = trial.ask(trial.batch), trial.ask(_take(trial.batch, order))
    trial.require_equal(straight, turned[::-1], "In a turned batch a row's answer differs")


def _is_independent(trial: _Examination) -> None:
    together = trial.ask(trial.batch)
    for index in range(len(trial.batch.rows)):
        alone = trial.ask(_take(trial.batch, [index]))
        trial.require_equal(together[index], alone[0], f"Alone, row {index} is answered otherwise")


def _pads(trial: _Examination) -> None:
    part = _take(trial.batch, range(len(trial.batch.rows) - 1))
    arrays = {key: np.concatenate([a, a[-1:]]) for key, a in part.arrays.items()}
    padded = Batch(arrays=arrays, rows=part.rows, pad=1)
    trial.require_equal(trial.ask(part), trial.ask(padded), "With padding, answers differ")


def _keeps_up(trial: _Examination) -> None:
    """`spec.concurrency` threads at once, none of them the one that built the policy."""
    many = trial.policy.spec.concurrency
    # Sessions are named before, since the threads share this object.
    batches = [_with_sessions(trial.batch, f"thread-{number}") for number in range(2 * many)]
    expected = trial.ask(trial.batch)
    with concurrent.futures.ThreadPoolExecutor(many) as pool:
        asked = [pool.submit(trial.ask, batch, as_given=True) for batch in batches]
        answers = [each.result(timeout=_DEADLINE_S) for each in asked]
    if trial.policy.spec.keyed_noise:
        for answer in answers:
            trial.require_equal(expected, answer, "From another thread the answer differs")


def _close(policy: Policy) -> None:
    policy.close()
    policy.close()


def _with_sessions(batch: Batch, name: str) -> Batch:
    rows = tuple(
        dataclasses.replace(row, session=f"{name}-{index}") for index, row in enumerate(batch.rows)
    )
    return dataclasses.replace(batch, rows=rows)


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
        batch = Batch(arrays=stacked, rows=tuple(_row(task, index) for index in range(size)))
    if len(batch.rows) < 2:
        raise ValueError("An example of at least two different rows is needed to check a policy.")
    return batch


def _row(task: str, index: int) -> Row:
    trial = Trial(suite="check", task=task, seed=index)
    return Row(
        trial=trial,
        attempt=0,
        chunk=0,
        noise_seed=noise_seed(trial, 0),
        prompt="do the task",
        session=trial.id,
    )


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


def _always(spec: PolicySpec) -> bool:
    return True


def _keyed(spec: PolicySpec) -> bool:
    return spec.keyed_noise


def _keyed_batches(spec: PolicySpec) -> bool:
    return spec.keyed_noise and spec.max_batch > 1


_BASIC: tuple[str, Callable[[_Examination], None]] = (
    "infer() answers every row with finite actions [B, T, A].",
    _answers,
)
_RULES: Sequence[tuple[str, Callable[[_Examination], None], Callable[[PolicySpec], bool]]] = (
    ("infer() leaves its batch as it was.", _spares_batch, _always),
    ("An answer is the caller's: a later infer() does not change it.", _gives_away, _always),
    ("infer() may be called from other threads, spec.concurrency at once.", _keeps_up, _always),
    ("The same batch gets the same answer.", _repeats, _keyed),
    ("Noise comes from the noise seed alone.", _is_keyed, _keyed),
    ("Row i answers row i.", _answers_in_order, _keyed_batches),
    ("A row's answer does not depend on the rest of its batch.", _is_independent, _keyed_batches),
    ("Padded rows change nothing for the others.", _pads, _keyed_batches),
)
