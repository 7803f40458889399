"""What one begins with: pages to read, files to start from, and a shell that completes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.cli import VERBS, main
from hocket.cli.begin import SHELLS, candidates
from support.parts import needs
from support.processes import DEADLINE_S

DOCS = Path(__file__).parents[2] / "docs"


def test_every_page_is_listed_and_one_is_printed_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["docs"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == sorted(
        path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")
    )
    assert main(["docs", "bring-an-env"]) == 0
    assert capsys.readouterr().out == (DOCS / "bring-an-env.md").read_text()
    assert main(["docs", "bring-a-env"]) == 2
    assert "Did you mean 'bring-an-env'?" in capsys.readouterr().err


@pytest.mark.heavy
@pytest.mark.parametrize("flags", [[], ["--camera", "32", "--actions", "3", "--chunk", "5"]])
def test_what_init_writes_keeps_every_contract(flags: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert main(["init", str(folder), *flags]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_init_touches_no_file_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "my_envs.py"
    mine.write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert f"{mine} would be written over" in capsys.readouterr().err
    assert (mine.read_text(), len(list(tmp_path.iterdir()))) == ("mine", 1)
    assert main(["init", str(tmp_path / "new"), "--camera", "3"]) == 2
    assert not (tmp_path / "new").exists()


def test_verbs_names_and_flags_are_completed() -> None:
    assert candidates([""]) == list(VERBS)
    assert candidates(["res"]) == ["resume"]
    assert candidates(["eval", "--env", "metaworld,to"]) == ["metaworld,toy"]
    assert "--episodes" in candidates(["eval", "--ep"])
    assert candidates(["eval", "--env", "toy:image", "--env.image"]) == ["--env.image-size"]
    assert candidates(["resume", ""]) == [], "a folder, which the shell completes itself"
    assert candidates(["nothing", "--"]) == []


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param(
            name,
            marks=needs(name, is_there=shutil.which(name) is not None, how=f"apt install {name}"),
        )
        for name in SHELLS
    ],
)
@pytest.mark.slow
def test_a_shell_completes_a_verb(shell: str, tmp_path: Path) -> None:
    ask = {
        "bash": 'eval "$(hocket completion bash)"; COMP_WORDS=(hocket resu); COMP_CWORD=1; '
        "_hocket; echo ${COMPREPLY[@]}",
        "zsh": 'compdef() {}; compadd() { shift; echo "$@"; }; eval "$(hocket completion zsh)"; '
        "words=(hocket resu); CURRENT=2; _hocket",
        "fish": "hocket completion fish | source; complete -C 'hocket resu'",
    }
    done = subprocess.run(
        [shell, "-c", ask[shell]],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout.split()[:1] == ["resume"], done.stderr
