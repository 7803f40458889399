"""How the authors of a benchmark run it, a file each: which trials, limits, settings and rules.

A protocol is one of this folder by its name, or one of yours by its path. Its `settings` are those
of an evaluation, which flags override; what `tasks` and `facts` say is held against what the env
tells of itself. `RunProtocol` says what a run does otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hocket.core import plugins
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, UnknownNameError
from hocket.records.run_file import load_run
from hocket.results.comparing.config_diff import differs, setting_differences
from hocket.results.run_protocol import WORDS, RunProtocol
from hocket.runs.config import EvalConfig
from hocket.system.text import did_you_mean

_FOLDER = Path(__file__).parent
_SETTINGS = ("env", "episodes", "seed", "replan", "ensemble", "max_steps", "env_config")
"""What a file may set: no run file leaves any of it out."""
_SIDES = ("here", "by the protocol")
_RULES = ("max_steps", "control_rate", "success_rule")
"""What it may say of tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    about: RunProtocol
    settings: Mapping[str, Any]
    """Those of an evaluation, as in run.yaml."""
    tasks: Mapping[str, Mapping[str, Any]]
    """Limit, control rate and success rule by suite, or by suite/task where a task has its own."""
    facts: Mapping[str, str]
    """What envs must tell of themselves for the port to be this one."""

    def of_run(
        self, config: EvalConfig, tasks: Mapping[str, Sequence[TaskInfo]] | None = None
    ) -> RunProtocol:
        """What a run does otherwise, as far as its configuration and its tasks tell."""
        from hocket.results.card import RERUN  # imports too much for the help of verbs

        asked = EvalConfig.from_plain({"policy": config.policy, **self.settings})
        part, differing = [], []
        if set(config.env) < set(asked.env):
            part.append(f"{', '.join(config.env)} of {', '.join(asked.env)}")
        elif set(config.env) != set(asked.env):
            differing.append(_gap("env", ",".join(config.env), ",".join(asked.env)))
        if config.episodes < asked.episodes:
            part.append(f"{config.episodes} of {asked.episodes} episodes of each task")
        elif config.episodes > asked.episodes:
            differing.append(_gap("episodes", config.episodes, asked.episodes))
        for key in ("seed", "until", *(key for key in RERUN if key not in ("exact", "max_steps"))):
            if getattr(config, key) != getattr(asked, key):
                differing.append(_gap(key, getattr(config, key), getattr(asked, key)))
        ours, theirs = (
            {"env": config.env, "max_steps": each.max_steps, "env_config": each.env_config}
            for each in (config, asked)
        )
        differing += setting_differences(ours, theirs, _SIDES)
        for suite, infos in (tasks or {}).items():
            for info in infos:
                differing += self.gaps(suite, info, config.max_steps)
        return replace(self.about, part=tuple(part), differs=tuple(dict.fromkeys(differing)))

    def begun(self, config: EvalConfig, about: Mapping[str, Any]) -> dict[str, Any]:
        """What a run keeps when it begins, or goes on: what envs of an earlier leg told stays,
        though their tasks have ended."""
        before = RunProtocol.of(about) or self.about
        return with_gaps(self.of_run(config).to_plain(), before.differs)

    def gaps(
        self,
        suite: str,
        info: TaskInfo,
        limit: int | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> list[str]:
        """What a task, under a run's own step limit, or what its env tells is otherwise."""
        told = []
        if facts is not None:
            told = [_gap(k, facts.get(k), v) for k, v in self.facts.items() if facts.get(k) != v]
        where = own if (own := f"{suite}/{info.name}") in self.tasks else suite
        for name, value in self.tasks.get(where, {}).items():
            found = limit if name == "max_steps" and limit is not None else getattr(info, name)
            if found != value:
                told.append(_gap(f"{name} of {where}", found, value))
        return told


def load_protocol(name: str) -> Protocol:
    """The protocol of this name, or in this file."""
    known = sorted(each.stem for each in _FOLDER.glob("*.yaml"))
    path = _FOLDER / f"{name}.yaml" if name in known else Path(name)
    if name not in known and path.suffix not in (".yaml", ".yml"):
        raise UnknownNameError(
            f"There is no protocol {name!r}.{did_you_mean(name, known)} Known: "
            f"{', '.join(known)}; or give a file of your own, as my_protocol.yaml."
        )
    plain = load_run(path)
    words = {key: str(plain.pop(key, "")) for key in WORDS if key != "name"}
    groups = {key: plain.pop(key, {}) for key in ("settings", "tasks", "facts")}
    strange = list(plain)
    try:
        strange += groups["settings"].keys() - set(_SETTINGS)
        strange += {key for rules in groups["tasks"].values() for key in rules} - set(_RULES)
        facts = {key: str(value) for key, value in groups["facts"].items()}
    except AttributeError:
        raise ConfigError(f"{name!r} has something else than mappings in {list(groups)}.") from None
    if strange:
        raise ConfigError(
            f"The protocol {name!r} says {strange[0]!r}. Beside {', '.join(words)} it may have "
            f"settings ({', '.join(_SETTINGS)}), tasks ({', '.join(_RULES)}) and facts."
        )
    if lacking := [key for key in ("suite", "port", "rule", "by") if not words[key]]:
        raise ConfigError(f"The protocol {name!r} does not say its {', '.join(lacking)}.")
    EvalConfig.from_plain({"policy": "none", **groups["settings"]})  # refuses what is wrong
    about = RunProtocol(name=name, **words)  # type: ignore[arg-type]
    return Protocol(about=about, settings=groups["settings"], tasks=groups["tasks"], facts=facts)


def protocol_of(config: EvalConfig) -> Protocol | None:
    """The protocol that a run is begun by, if any."""
    return load_protocol(config.protocol) if config.protocol else None


def protocol_lines(config: EvalConfig, tasks: Mapping[str, Sequence[TaskInfo]]) -> list[str]:
    """The sentence on the protocol of a run, before it begins; none of one without."""
    found = protocol_of(config)
    return [] if found is None else [found.of_run(config, tasks).sentence]


def with_gaps(kept: Mapping[str, Any], gaps: Sequence[str]) -> dict[str, Any]:
    """What a run keeps of its protocol, with more that differs."""
    return {**kept, "differs": list(dict.fromkeys([*kept["differs"], *gaps]))}


def with_protocol(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an evaluation over those of the protocol that they name. Those of envs stand for
    all of the protocol's, since a run file leaves out what is an env's default."""
    if not plain.get("protocol"):
        return dict(plain)
    settings = load_protocol(str(plain["protocol"])).settings
    found = {**settings, **plain}
    if "env" in plain and "env_config" not in plain:
        envs = [found["env"]] if isinstance(found["env"], str) else found["env"]
        known = {key for name in envs for key in plugins.find("envs", name).settings}
        if lacks := set(settings.get("env_config", {})) - known:
            raise ConfigError(
                f"The protocol {plain['protocol']!r} sets {min(lacks)}, which {', '.join(envs)} "
                f"does not have: it is of {', '.join(settings.get('env', ()))}."
            )
    return found


def _gap(name: str, ours: Any, theirs: Any) -> str:
    return differs(name, ours, theirs, _SIDES)
