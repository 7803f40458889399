"""A policy served to vla-eval's own harness, beside clients of OpenPI's protocol.

Their harness sends every step and wants one action for it, so what is left of a chunk is kept here,
for each connection; only a step without a chunk is inferred, in batches as any other request.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hocket import __version__
from hocket.adapters.policies import vla_eval_wire as wire
from hocket.adapters.policies.openpi.protocol import read_observation
from hocket.core.contracts.policy import Policy
from hocket.core.data import Array, Observation
from hocket.errors import HocketError, ObservationError, WireError
from hocket.serve.backend import PolicyBackend, PolicyOptions
from hocket.serve.clients import VLA_EVAL, Caller
from hocket.serve.metrics import Metrics
from hocket.serve.requests import StockRequest, row_inputs

_IMAGE = 3
"""Axes of an image."""


@dataclass(slots=True, eq=False)
class _Episode:
    caller: Caller
    """The episode, as a connection that asks for its chunks."""
    left: deque[Array] = field(default_factory=deque)
    """Actions of its last chunk."""


class VlaEvalBackend(PolicyBackend):
    """Answers vla-eval's clients too, as a model server of theirs does: an error ends no
    connection."""

    def __init__(
        self, policy: Policy, options: PolicyOptions, metrics: Metrics, keys: Mapping[str, str]
    ) -> None:
        """`keys`: the client's key for each of the policy's that it calls otherwise."""
        super().__init__(policy, options, metrics)
        self._name = options.name
        self._keys = keys
        self._inputs = row_inputs(policy.spec)
        self._episodes: dict[Caller, _Episode] = {}

    async def answer(self, caller: Caller, frame: bytes) -> bytes | None:
        if caller.dialect != VLA_EVAL:
            return await super().answer(caller, frame)
        began = time.perf_counter()
        kind, payload, number = await self._frames.read(frame, wire.unpack_message)
        try:
            if kind == wire.HELLO:
                return wire.pack_message(kind, self._hello(), number)
            if kind == wire.OBSERVATION:
                return wire.pack_message(
                    wire.ACTION, {"actions": await self._act(caller, payload, began)}, number
                )
            if kind in (wire.BEGIN, wire.END):
                self._end(caller)
                return None
            raise WireError(f"There is no message of kind {kind[:40]!r} for a server.")
        except HocketError as exc:
            self._metrics.errors[type(exc).__name__] += 1
            return wire.pack_message(wire.ERROR, {"error": str(exc)}, number)

    def leave(self, caller: Caller) -> None:
        self._end(caller)
        super().leave(caller)

    def _end(self, caller: Caller) -> None:
        episode = self._episodes.pop(caller, None)
        if episode is not None:
            super().leave(episode.caller)

    async def _act(self, caller: Caller, payload: Mapping[str, Any], began: float) -> Array:
        if caller not in self._episodes:
            caller.asked += 1
            self._episodes[caller] = _Episode(Caller(f"{caller.name}.{caller.asked}"))
        episode = self._episodes[caller]
        if not episode.left:
            seen = {key: value for key, value in payload.items() if not isinstance(value, str)}
            text = payload.get("task_description", self._options.prompt)
            found, prompt = read_observation({**seen, "prompt": text})
            view = self._requests.fit(self._named(found))
            request = StockRequest(view=view, prompt=prompt)
            reply = await self._answer_stock(episode.caller, request, began)
            episode.left.extend(reply["actions"][: self._spec.replan])
        return episode.left.popleft()

    def _named(self, found: Observation) -> Observation:
        """The observation under the policy's keys: by what the user said, by name, or by kind where
        there is one of it."""
        if self._inputs is None:
            return {self._keys.get(key, f"observation/{key}"): found[key] for key in found}
        named: Observation = {}
        for key, wanted in self._inputs.items():
            asked = self._keys.get(key)
            last = key.rpartition("/")[2]
            alike = [name for name in found if name == asked or name.rpartition("/")[2] == last]
            is_image = len(wanted.shape) == _IMAGE
            kind = [name for name in found if (found[name].ndim == _IMAGE) == is_image]
            names = [asked] if asked is not None else alike or kind
            if len(names) != 1 or names[0] not in found:
                raise ObservationError(
                    f"Which of {', '.join(found) or 'nothing'} is the policy's {key!r}? Say "
                    f"--keys {key}=NAME."
                )
            named[key] = found[names[0]]
        return named

    def _hello(self) -> dict[str, Any]:
        shapes = [wanted.shape for wanted in (self._inputs or {}).values()]
        images = sum(len(shape) == _IMAGE for shape in shapes)
        wants = {"send_wrist_image": images > 1, "send_state": len(shapes) > images}
        return {
            "harness_version": f"hocket {__version__}",
            "protocol_version": wire.PROTOCOL_VERSION,
            "model_server": self._name,
            "capabilities": {},
            "observation_params": {name: True for name, value in wants.items() if value},
        }
