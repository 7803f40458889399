"""The suites `libero-plus:spatial|object|goal|10`, in an interpreter with LIBERO-Plus' package,
which takes the place of LIBERO's; and `libero-pro:NAME`, a folder of LIBERO-PRO's task files.

LIBERO-Plus disturbs LIBERO's forty tasks in seven ways, each variant once: 10,030 trials. A task
here is a way (`Camera Viewpoints`), and its trial k plays the k-th variant of that kind. With the
setting `clean` each trial plays what its variant was made of, in LIBERO itself, so that the two
runs are compared trial by trial.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import gymnasium

from hocket.adapters.envs.libero import CONTROL_RATE, STEP_LIMITS, SUITES, LiberoConfig, language
from hocket.adapters.envs.libero.data import find_data
from hocket.core.plugins import did_you_mean
from hocket.core.settings import check_among
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, UnknownNameError
from hocket.workers.env import gl
from hocket.workers.suites import find_task

if TYPE_CHECKING:
    from hocket.adapters.envs.libero.env import LiberoEnv

_LIST = "task_classification.json"
_CHANGE = re.compile(r"_(?:language|view|table|tb|light|add)_-?\d.*$|_level\d.*$")
"""What a variant's name says beyond that of its task."""
_INSTRUCTION = re.compile(r"\(:language\s+([^()]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One disturbed task of LIBERO-Plus."""

    suite: str
    name: str
    number: int
    factor: str
    level: int | None
    """How hard it is, 1 to 5, as its authors found; None where they do not say."""

    @property
    def base(self) -> str:
        """The task of LIBERO that it was made of."""
        return _CHANGE.sub("", self.name)

    @property
    def is_told_otherwise(self) -> bool:
        """True where its instruction is what was changed."""
        return "_language_" in self.name

    @property
    def has_own_start(self) -> bool:
        """True where its objects are others, or stand elsewhere."""
        return "_add_" in self.name or "_level" in self.name

    @property
    def told(self) -> dict[str, int]:
        level = {} if self.level is None else {"level": self.level}
        return {"variant": self.number, **level}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiberoPlusConfig(LiberoConfig):
    plain_texts: ClassVar[tuple[str, ...]] = ("variants",)
    clean: bool = False
    """Play the task of LIBERO that each variant was made of, in LIBERO's own interpreter."""
    prompts: Literal["theirs", "plain"] = "theirs"
    """`theirs` are as LIBERO-Plus' package has them: a rewritten instruction where that is what is
    changed, else the words of the variant's name, such as `... on the plate table 1`. `plain`
    leaves out what is not of the task."""
    variants: str = ""
    """LIBERO-Plus' list of its variants, task_classification.json; empty takes that of the
    interpreter's package."""

    def __post_init__(self) -> None:
        LiberoConfig.__post_init__(self)  # slots: there is no super()
        check_among(self, prompts=("theirs", "plain"))
        if self.start_scheme != "state":
            raise ConfigError("Each variant begins in one start: leave start_scheme out.")
        if not self.clean and (self.render != "full" or self.hard_reset):
            raise ConfigError("render and hard_reset are of the clean arm: add --env.clean.")


class LiberoPlus:
    """One of LIBERO-Plus' four suites: a task for each way of disturbing, a trial each variant."""

    Config: ClassVar = LiberoPlusConfig
    tasks_need_simulator: ClassVar = True
    independent_starts: ClassVar = True
    """The k-th variants of two kinds have nothing in common."""
    prepare_worker = staticmethod(gl.set_worker)

    def __init__(self, argument: str, config: LiberoPlusConfig) -> None:
        names = [name.removeprefix("libero_") for name in SUITES if name != "libero_90"]
        name = argument.strip().removeprefix("libero_")
        if name not in names:
            raise UnknownNameError(
                f"libero-plus: has no suite {argument!r}.{did_you_mean(name, names)} It has: "
                f"{', '.join(names)}."
            )
        self._suite = f"libero_{name}"
        self._config = config
        self._variants: dict[str, list[Variant]] = {}

    def tasks(self) -> tuple[TaskInfo, ...]:
        return tuple(
            TaskInfo(
                name=factor,
                max_steps=self._config.max_steps or STEP_LIMITS[self._suite],
                control_rate=CONTROL_RATE,
                starts=len(variants),
            )
            for factor, variants in self._found().items()
        )

    def make(self, task: str) -> gymnasium.Env[Any, Any]:
        find_task("libero-plus", self.tasks(), task)
        from hocket.adapters.envs.libero.variants import CleanEnv, VariantEnv

        kind = CleanEnv if self._config.clean else VariantEnv
        return kind(self._found()[task], self._config)

    def _found(self) -> Mapping[str, list[Variant]]:
        if not self._variants:
            for variant in read_variants(self._file(), self._suite):
                self._variants.setdefault(variant.factor, []).append(variant)
        return self._variants

    def _file(self) -> Path:
        if self._config.variants:
            return Path(self._config.variants)
        spec = importlib.util.find_spec("libero")
        for place in (spec and spec.submodule_search_locations) or ():
            file = Path(place) / "libero" / "benchmark" / _LIST
            if file.is_file():
                return file
        raise ConfigError(
            f"The package libero of this interpreter is not LIBERO-Plus': it has no {_LIST}. Name "
            "the interpreter that has it, --env-python PATH; or, to play its tasks undisturbed "
            "(--env.clean) in LIBERO's own, that file: --env.variants FILE."
        )


def read_variants(file: Path, suite: str) -> list[Variant]:
    """The variants of one suite, in the order of the list."""
    try:
        entries = json.loads(file.read_text())[suite]
        found = [
            Variant(
                suite=suite,
                name=str(one["name"]),
                number=int(one["id"]),
                factor=str(one["category"]),
                level=None if (level := one.get("difficulty_level")) is None else int(level),
            )
            for one in entries
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConfigError(f"{file} is no list of variants of {suite}: {exc!r}") from exc
    if unknown := sorted({one.base for one in found} - set(SUITES[suite])):
        raise ConfigError(f"{file}: {unknown[0]!r} is made of no task of {suite}.")
    return found


class LiberoPro:
    """The tasks of a folder that LIBERO-PRO adds to LIBERO's `bddl_files/`, such as
    `spatial_swap`, in the order of their names."""

    Config: ClassVar = LiberoConfig
    tasks_need_simulator: ClassVar = True
    prepare_worker = staticmethod(gl.set_worker)

    def __init__(self, argument: str, config: LiberoConfig) -> None:
        name = argument.strip()
        self._folder = name if name.startswith("libero_") else f"libero_{name}"
        bases = [base for base in SUITES if self._folder.startswith(f"{base}_")]
        if not bases:
            raise UnknownNameError(
                f"libero-pro:{argument} names no disturbed suite of LIBERO's: write "
                "libero-pro:spatial_swap, goal_lan, object_task, 10_env ..."
            )
        self._limit = config.max_steps or STEP_LIMITS[bases[0]]
        self._config = config

    def tasks(self) -> tuple[TaskInfo, ...]:
        place = find_data().bddl_files / self._folder
        files = sorted(place.glob("*.bddl"))
        if not files:
            raise ConfigError(
                f"There are no task files in {place}. LIBERO-PRO's bddl_files/ and init_files/ go "
                "beside LIBERO's own (docs/envs.md)."
            )
        return tuple(
            TaskInfo(
                name=file.stem,
                prompt=_instruction(file),
                max_steps=self._limit,
                control_rate=CONTROL_RATE,
            )
            for file in files
        )

    def make(self, task: str) -> LiberoEnv:
        find_task("libero-pro", self.tasks(), task)
        from hocket.adapters.envs.libero.env import LiberoEnv

        return LiberoEnv(self._folder, task, self._config)


def _instruction(file: Path) -> str:
    """What a task file says is to be done; the file's name where it does not."""
    found = _INSTRUCTION.search(file.read_text())
    return " ".join(found[1].split()) if found else language(file.stem)
