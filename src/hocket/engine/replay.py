"""`ChunkReplay`: a chunk policy inside a vector loop that somebody else owns."""

from __future__ import annotations

import copy
import dataclasses
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from hocket.core import plugins
from hocket.core.arrays import read_ids
from hocket.core.contracts.policy import Policy, Reconnects, Sessions
from hocket.core.data import Array, Batch, Observation, Row, Trial, noise_seed
from hocket.engine.chunk_rules import ChunkRule, check_answer, finite_rows, make_rule
from hocket.engine.observed import (
    Prompts,
    StackedObservations,
    read_observations,
    read_prompts,
    same_kind,
)
from hocket.errors import ChunkValueError, PolicyUnavailableError, SessionLostError, UsageError

LOST = (ConnectionError, EOFError, PolicyUnavailableError, SessionLostError)
"""What a policy raises when whoever answers next may not be who answered before."""
OnReconnect = Literal["flush", "keep"]
UNMIXED_TRIES = 4
"""Times that all envs are asked again after a lost connection."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Decision:
    """What a chunk is asked for with: kept while the chunk is used, to ask for it again."""

    row: Row
    observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _EnvStates:
    """What every env has done and will do next. Replaced whole by one assignment and never written
    into, so an exception at any moment leaves all envs as they were."""

    actions: Array
    """`[N, K, A]`; what env i has yet to execute is `actions[i, positions[i] : counts[i]]`."""
    counts: Array
    positions: Array
    executed: Array
    """Steps that each env has executed in this episode."""
    chunks: Array
    """Index of the next chunk to ask for in this episode."""
    episodes: Array
    rules: tuple[ChunkRule, ...]
    decisions: tuple[_Decision | None, ...]
    past: tuple[Observation, ...] = ()
    """Observations of earlier steps, stacked, newest first; as many as the policy's history."""
    reconnects: int = 0
    """How many connections the policy had made again when these chunks were last known to be of
    one server."""


class ChunkReplay:
    """Drops a chunk policy into your own vector loop: `act` gives each env its next action.

    Every env has its own chunk and its own position in it. The policy is asked only for envs whose
    chunk is used up, all of them in one batch (of at most `spec.max_batch` rows). Call `reset` with
    the envs whose episode ended; all others go on with their chunks.

        replay = ChunkReplay(policy)
        while running:
            actions = replay.act(obs)            # [N, A]
            obs, reward, terminated, truncated, info = envs.step(actions)
            replay.reset(terminated | truncated)

    An `act` that raises has changed nothing: call it again and it returns what it would have
    returned. After a lost connection (an exception of `lost`, or one that the policy made again by
    itself) the chunks in use are asked for again as well, with the observations and seeds that they
    were made from, or with what is seen now where the policy draws its own noise: an unchanged
    policy answers as before, and the answers of a changed one are never mixed with those of the old
    (an ensemble starts anew). With `on_reconnect="keep"` chunks in use are kept when the policy
    made a connection again by itself: cheaper, and sound only for a server that is surely the same.

    Noise is keyed by `seed`, the env's index, how many episodes it had, and the chunk's index.
    Not safe to use from several threads at once.
    """

    def __init__(
        self,
        policy: Policy | str,
        *,
        replan: int | None = None,
        ensemble: float | None = None,
        prompts: Prompts | None = None,
        seed: int = 0,
        lost: tuple[type[BaseException], ...] = LOST,
        on_reconnect: OnReconnect = "flush",
    ) -> None:
        if on_reconnect not in get_args(OnReconnect):
            raise UsageError(f"on_reconnect is 'flush' or 'keep', not {on_reconnect!r}.")
        self._owned = isinstance(policy, str)
        self._policy: Policy = (
            plugins.build("policies", policy) if isinstance(policy, str) else policy
        )
        self._spec = self._policy.spec
        if replan is None and ensemble is None:
            replan = self._spec.replan
        self._make_rule = make_rule(replan, ensemble)
        self._prompts = prompts
        self._seed = seed
        self._lost = lost
        self._flushes = on_reconnect == "flush"
        self._now: _EnvStates | None = None
        self._stale = False
        self._sessions: dict[str, int] = {}
        self._name = secrets.token_hex(8)
        """Names this loop in sessions: others may ask the same policy."""

    @property
    def num_envs(self) -> int | None:
        """The number of envs, None before the first `act`."""
        return None if self._now is None else len(self._now.positions)

    def act(self, obs: Any, prompts: Prompts | None = None) -> Any:
        """The next action of every env, `[N, A]` float32: numpy, or a torch tensor where the
        observations are tensors.

        `obs` is a dict of stacked arrays `[N, ...]`; nested dicts become slash keys, and a key
        `prompt` may hold the texts. `prompts`, here or in the constructor, is one text or N.
        """
        keys = None if self._spec.inputs is None else tuple(self._spec.inputs)
        seen = read_observations(obs, keys)
        now = self._known(seen.size)
        try:
            after = self._ask(now, seen, self._texts(seen, prompts))
        except self._lost:
            self._stale = True
            raise
        actions = same_kind(after.actions[np.arange(seen.size), after.positions], seen.device)
        after = dataclasses.replace(
            after,
            positions=after.positions + 1,
            executed=after.executed + 1,
            past=self._remember(now, seen),
        )
        self._now, self._stale = after, False
        return actions

    def reset(self, ids: Any = None) -> None:
        """Forget the chunks of these envs and begin their next episode: None (all), an int, a
        list, an array, a tensor, or a bool mask. An env that did not act since its last reset is
        left as it is."""
        now = self._now
        which = read_ids(ids, None if now is None else len(now.positions))
        if now is None:
            return
        chosen = np.ones(len(now.positions), np.bool_)
        if which is not None:
            chosen[:] = False
            chosen[which] = True
        self._now = dataclasses.replace(
            now,
            counts=np.where(chosen, 0, now.counts),
            positions=np.where(chosen, 0, now.positions),
            executed=np.where(chosen, 0, now.executed),
            chunks=np.where(chosen, 0, now.chunks),
            episodes=now.episodes + (chosen & (now.executed > 0)),
            rules=tuple(
                self._make_rule() if chosen[env] else rule for env, rule in enumerate(now.rules)
            ),
            decisions=tuple(
                None if chosen[env] else held for env, held in enumerate(now.decisions)
            ),
        )
        self._end_sessions([name for name, env in self._sessions.items() if chosen[env]])

    def close(self) -> None:
        """End the policy's sessions, and the policy itself where it was given by name."""
        self._end_sessions(list(self._sessions))
        if self._owned:
            self._policy.close()

    def __enter__(self) -> ChunkReplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _known(self, size: int) -> _EnvStates:
        if self._now is None:
            zeros = np.zeros(size, np.intp)
            self._now = _EnvStates(
                actions=np.zeros((size, 0, 0)),
                counts=zeros,
                positions=zeros,
                executed=zeros,
                chunks=zeros,
                episodes=zeros,
                rules=tuple(self._make_rule() for _ in range(size)),
                decisions=(None,) * size,
                reconnects=self._reconnects,
            )
        elif self.num_envs != size:
            raise UsageError(
                f"act was given {size} envs; the first call had {self.num_envs}, and their "
                f"number is fixed. Make a new ChunkReplay for another number of envs."
            )
        return self._now

    def _texts(self, seen: StackedObservations, prompts: Prompts | None) -> tuple[str, ...]:
        if prompts is None and seen.prompts is not None:
            return seen.prompts
        given = self._prompts if prompts is None else prompts
        return read_prompts("" if given is None else given, seen.size)

    def _ask(self, now: _EnvStates, seen: StackedObservations, texts: Sequence[str]) -> _EnvStates:
        """The envs once each has a chunk. Where a connection was lost between two batches, all are
        asked again, and so are the chunks in use where the policy connected again since they came,
        unless those are kept."""
        for _ in range(UNMIXED_TRIES):
            before = self._reconnects
            held = now.positions < now.counts
            if self._stale and not self._spec.keyed_noise:
                # Asked again it would answer otherwise: better from what is seen now.
                held[:] = False
            asked = self._decide(now, seen, held, texts)
            chunks = self._infer(asked, now)
            after = self._reconnects
            is_whole = after == before or len(asked) <= self._spec.max_batch
            is_stale = after != now.reconnects and self._flushes and len(asked) < len(held)
            if is_whole and not is_stale:
                used = self._use(now, asked, chunks, held) if asked else now
                return dataclasses.replace(used, reconnects=after)
            self._stale = self._stale or is_stale
        raise PolicyUnavailableError(
            f"Connections were lost in each of {UNMIXED_TRIES} tries to ask for all envs. With "
            f"--policy.max-batch of at least their number one connection answers for all."
        )

    @property
    def _reconnects(self) -> int:
        return self._policy.reconnects if isinstance(self._policy, Reconnects) else 0

    def _decide(
        self, now: _EnvStates, seen: StackedObservations, held: Array, texts: Sequence[str]
    ) -> dict[int, _Decision]:
        """What to ask for now, by env: new chunks, and the held ones where they may be stale."""
        asked: dict[int, _Decision] = {}
        for env in np.flatnonzero(~held).tolist():
            episode, chunk = int(now.episodes[env]), int(now.chunks[env])
            trial = Trial(suite="loop", task=f"env-{env}", seed=self._seed, repeat=episode)
            row = Row(
                trial=trial,
                attempt=0,
                chunk=chunk,
                noise_seed=noise_seed(trial, chunk),
                prompt=texts[env],
                session=f"{trial.id} of {self._name}",
            )
            asked[env] = _Decision(row=row, observation=self._observation(now, seen, env))
        if self._stale:
            for env in np.flatnonzero(held).tolist():
                decision = now.decisions[env]
                assert decision is not None, "a held chunk has the decision that it came from"
                asked[env] = decision
        return asked

    def _observation(self, now: _EnvStates, seen: StackedObservations, env: int) -> Observation:
        if self._spec.history == 1:
            return {key: array[env] for key, array in seen.arrays.items()}
        steps = (seen.arrays, *now.past)
        oldest = int(now.executed[env])
        back = [min(age, oldest) for age in reversed(range(self._spec.history))]
        return {key: np.stack([steps[age][key][env] for age in back]) for key in seen.arrays}

    def _remember(self, now: _EnvStates, seen: StackedObservations) -> tuple[Observation, ...]:
        if self._spec.history == 1:
            return ()
        newest = {key: array.copy() for key, array in seen.arrays.items()}
        return (newest, *now.past)[: self._spec.history - 1]

    def _infer(self, asked: dict[int, _Decision], now: _EnvStates) -> dict[int, Array]:
        """The chunks asked for. Takes the decisions' observations over into the batch's arrays,
        so that they no longer depend on the caller's."""
        envs = sorted(asked)
        name = type(self._policy).__name__
        action_size = now.actions.shape[2] or self._spec.action_size
        chunks: dict[int, Array] = {}
        for start in range(0, len(envs), self._spec.max_batch):
            part = envs[start : start + self._spec.max_batch]
            self._begin_sessions({env: asked[env].row for env in part})
            batch = Batch(
                arrays={
                    key: np.stack([asked[env].observation[key] for env in part])
                    for key in asked[part[0]].observation
                },
                rows=tuple(asked[env].row for env in part),
            )
            answer = check_answer(
                self._policy.infer(batch),
                rows=len(part),
                size=len(part),
                action_size=action_size,
                chunk_length=self._spec.chunk_length,
                name=name,
            )
            action_size = answer.values.shape[2]
            finite = finite_rows(answer.values)
            if not finite.all():
                bad = [part[row] for row in np.flatnonzero(~finite)]
                raise ChunkValueError(
                    f"Policy {name!r} returned NaN or infinite actions for envs {bad}. Nothing was "
                    f"executed; check the observation that it saw."
                )
            for row, env in enumerate(part):
                chunks[env] = answer.values[row].copy()
                own = {key: array[row] for key, array in batch.arrays.items()}
                asked[env] = _Decision(row=asked[env].row, observation=own)
        return chunks

    def _use(
        self,
        now: _EnvStates,
        asked: dict[int, _Decision],
        chunks: dict[int, Array],
        held: Array,
    ) -> _EnvStates:
        """The envs once they use these chunks."""
        rules, decisions = list(now.rules), list(now.decisions)
        positions, counts = now.positions.copy(), now.counts.copy()
        indices = now.chunks.copy()
        taken: dict[int, Array] = {}
        for env, chunk in chunks.items():
            rules[env] = self._make_rule() if self._stale else copy.copy(rules[env])
            made_at = int(now.executed[env]) - (int(positions[env]) if held[env] else 0)
            taken[env] = rules[env].take(chunk, made_at)
            counts[env] = len(taken[env])
            decisions[env] = asked[env]
            if not held[env]:
                positions[env] = 0
                indices[env] += 1
        if (positions >= counts).any():
            raise UsageError(
                "After a lost connection the policy answers with shorter chunks than those in use. "
                "Reset every env."
            )
        size = next(iter(taken.values())).shape[1]
        actions = np.zeros((len(positions), int(counts.max()), size))
        if len(taken) < len(positions):
            actions[:, : now.actions.shape[1]] = now.actions[:, : actions.shape[1]]
        for env, values in taken.items():
            actions[env, : len(values)] = values
        return dataclasses.replace(
            now,
            actions=actions,
            counts=counts,
            positions=positions,
            chunks=indices,
            rules=tuple(rules),
            decisions=tuple(decisions),
        )

    def _begin_sessions(self, rows: dict[int, Row]) -> None:
        if isinstance(self._policy, Sessions):
            for env, row in rows.items():
                if row.session not in self._sessions:
                    self._policy.begin_session(row)
                    self._sessions[row.session] = env

    def _end_sessions(self, names: Sequence[str]) -> None:
        if isinstance(self._policy, Sessions):
            for name in names:
                del self._sessions[name]
                self._policy.end_session(name)
