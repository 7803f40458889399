"""The verbs that one begins with: `hocket docs`, `hocket init` and `hocket completion`."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

import hocket
from hocket.cli.flags.parse import parse
from hocket.core import plugins
from hocket.core.plugins import Kind, did_you_mean
from hocket.errors import UsageError

_DOCS = Path(hocket.__file__).parent / "docs"
_TEMPLATES = Path(__file__).parent / "templates"
_NAMED: dict[str, Kind] = {
    "--env": "envs",
    "--policy": "policies",
    "--runtime": "runtimes",
    "--reader": "readers",
}
"""Flags whose values are names of adapters."""
SHELLS = {
    "bash": """_hocket() {{
  local line
  COMPREPLY=()
  while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
    {command} "${{COMP_WORDS[@]:1:$COMP_CWORD}}" 2>/dev/null)
}}
complete -o default -F _hocket hocket
""",
    "zsh": """_hocket() {{
  local -a found
  found=("${{(@f)$({command} "${{(@)words[2,$CURRENT]}}" 2>/dev/null)}}")
  if [[ -n "$found" ]]; then compadd -- $found; else _files; fi
}}
compdef _hocket hocket
""",
    "fish": """complete -c hocket -a "(\
{command} (commandline -opc)[2..] (commandline -ct) 2>/dev/null)"
""",
}
"""What each shell is told: it asks `hocket completion SHELL -- WORDS` for what may follow."""


@dataclass(frozen=True, kw_only=True)
class Docs:
    """Read the documentation that belongs to this version."""

    page: Positional[Annotated[str, arg(metavar="PAGE")]] = ""
    """A page, such as bring-an-env; without one all are listed."""


def docs(arguments: Sequence[str]) -> int:
    """Print a page, as Markdown where nobody sees it."""
    flags = parse(Docs, arguments, verb="docs")
    from rich.markdown import Markdown

    from hocket import cli
    from hocket.results.terminal import Console

    pages = {path.relative_to(_DOCS).with_suffix("").as_posix(): path for path in _pages()}
    if not flags.page:
        width = max(map(len, pages))
        for name, path in pages.items():
            heading = path.read_text(encoding="utf-8").partition("\n")[0]
            sys.stdout.write(f"{name:<{width}}  {heading.lstrip('# ')}\n")
        return cli.OK
    name = flags.page.removesuffix(".md")
    if name not in pages:
        raise UsageError(
            f"There is no page {name!r}.{did_you_mean(name, pages)} hocket docs lists them."
        )
    text = pages[name].read_text(encoding="utf-8")
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        sys.stdout.write(text)
    return cli.OK


def _pages() -> list[Path]:
    return sorted([*_DOCS.glob("*.md"), *_DOCS.glob("*/*.md")], key=lambda path: path.as_posix())


@dataclass(frozen=True, kw_only=True)
class Init:
    """Write an env, a policy that solves it, and tests of both, to be changed into yours."""

    folder: Positional[Path] = Path()
    """Where to write them; no file that is there is touched."""
    actions: Annotated[int, arg(metavar="N")] = 2
    """Numbers in an action."""
    chunk: Annotated[int, arg(metavar="N")] = 8
    """Actions that the policy answers with."""
    camera: Annotated[int, arg(metavar="PIXELS")] = 0
    """Give the env a camera with so many pixels on each side."""


def init(arguments: Sequence[str]) -> int:
    """Write the files, all or none."""
    flags = parse(Init, arguments, verb="init")
    from hocket import cli

    for name, least in (("actions", 1), ("chunk", 1), ("camera", 0)):
        if getattr(flags, name) < least:
            raise UsageError(f"--{name} is at least {least}, not {getattr(flags, name)}.")
    if 0 < flags.camera < 16:
        raise UsageError(f"--camera has at least 16 pixels, not {flags.camera}.")
    texts = {
        flags.folder / path.name.removesuffix(".txt"): _filled(path, flags)
        for path in sorted(_TEMPLATES.glob("*.txt"))
    }
    there = [str(path) for path in texts if path.exists()]
    if there:
        raise UsageError(f"{', '.join(there)} would be written over: name another folder.")
    flags.folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    where = "" if flags.folder == Path() else f"cd {flags.folder}; "
    sys.stdout.write(
        f"Try them: {where}python -m pytest test_mine.py\n"
        f"          {where}hocket eval --env my_envs.py:Point --policy my_policies.py:Homing\n"
    )
    return cli.OK


def _filled(template: Path, flags: Init) -> str:
    """A template with its numbers, and without the lines that only the other kind of env has."""
    text = template.read_text(encoding="utf-8")
    unwanted, wanted = ("#plain", "#camera") if flags.camera else ("#camera", "#plain")
    lines = [line for line in text.splitlines() if not line.endswith(unwanted)]
    text = "\n".join(line.removesuffix(wanted).rstrip() for line in lines) + "\n"
    numbers = {"ACTIONS": flags.actions, "CHUNK": flags.chunk, "PIXELS": flags.camera}
    for name, value in numbers.items():
        text = text.replace(f"@{name}@", str(value))
    return text


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Let a shell complete verbs, flags, and the names of envs and policies. Bash: eval "$(hocket
    completion bash)" in ~/.bashrc; zsh the same in ~/.zshrc, after compinit; fish: hocket
    completion fish > ~/.config/fish/completions/hocket.fish."""

    shell: Positional[Literal["bash", "zsh", "fish"]]
    """The shell."""


def completion(arguments: Sequence[str]) -> int:
    """Print what the shell is told; after `--`, what may follow the words there."""
    from hocket import cli

    given = list(arguments)
    if "--" in given:
        words = given[given.index("--") + 1 :]
        sys.stdout.write("".join(f"{one}\n" for one in candidates(words)))
        return cli.OK
    flags = parse(Completion, given, verb="completion")
    command = f"hocket completion {flags.shell} --"
    sys.stdout.write(SHELLS[flags.shell].format(command=command))
    return cli.OK


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of the words may become, the ones before it being as they are; empty where the
    shell's own files are as good."""
    from hocket import cli

    *before, last = words or [""]
    if not before:
        return [verb for verb in cli.VERBS if verb.startswith(last)]
    kind = _NAMED.get(before[-1])
    if kind is not None:
        names = plugins.names(kind)
        head, comma, part = last.rpartition(",")
        return [f"{head}{comma}{name}" for name in names if name.startswith(part)]
    if not last.startswith("-") or before[0] not in cli.VERBS:
        return []
    return [flag for flag in _flags_of(before) if flag.startswith(last)]


def _flags_of(words: Sequence[str]) -> list[str]:
    """The flags of a verb, with those of the env and the policy that are named."""
    from hocket import cli

    verb, *rest = words
    named = [word for pair in itertools.pairwise(rest) if pair[0] in _NAMED for word in pair]
    text = io.StringIO()
    with (
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text),
        contextlib.suppress(SystemExit),
    ):
        cli.main([verb, *named, "--help-all"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", text.getvalue())))
