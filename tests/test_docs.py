"""What the documents show is run: files are written as shown, commands and scripts executed."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.cli import EXAMPLES, main
from support.commands import run_here
from support.parts import needs_venv
from support.stock_openpi import free_port

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/bring-an-env.md", "docs/bring-a-policy.md"]
ALL_PAGES = sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md"))


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def shown_files() -> dict[str, str]:
    """Every Python block is a file, named by its first line."""
    files = {}
    for page in PAGES:
        for block in blocks(page, "python"):
            name = re.match(r"# (\w+\.py)\n", block)
            assert name, f"A block of {page} has no file name: {block[:60]!r}"
            files[name[1]] = block
    return files


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("hocket ")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in shown_files().items():
        (tmp_path / name).write_text(text)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "run.yaml").write_text("env: [my_envs:Dot]\npolicy: random\n")
    job = "{env: my_envs.py:Dot, policy: random, episodes: 1, lanes: 1}"
    (tmp_path / "jobs.yaml").write_text(f"runs:\n  one: {job}\n")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done


def test_the_env_and_the_policy_of_the_readme_solve_each_other(folder: Path) -> None:
    names = ("--env", "my_envs:Dot", "--policy", "my_policies:Homing")
    done = run(folder, "-m", "hocket", "eval", *names, "--episodes", "6", "--lanes", "2", "--json")
    assert json.loads(done.stdout)["overall"]["rate"] == 1.0


def test_scripts_run_as_they_are_shown(folder: Path) -> None:
    for script in ("use.py", "live.py"):
        run(folder, script)


def test_conformance_tests_pass_as_they_are_shown(folder: Path) -> None:
    run(folder, "-m", "pytest", "-p", "no:cacheprovider", "test_slippery.py", "test_constant.py")


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process stands in the folder, and knows its modules neither before nor afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    modules = [Path(name).stem for name in shown_files()]
    for name in modules:
        sys.modules.pop(name, None)
    yield
    for name in modules:
        sys.modules.pop(name, None)


def assert_understood(words: list[str]) -> None:
    try:
        code = main(words)
    except SystemExit as done:
        code = done.code
    assert not code, words


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("command", commands())
def test_every_command_is_understood(command: str) -> None:
    words = shlex.split(command)[1:]
    if words[0] in ("eval", "train") and not {"--jobs", "--resume"} & set(words):
        words.append("--dry-run")
    elif words[0] != "plan":
        words.append("--help")
    assert_understood(words)


@pytest.fixture
def solved(folder: Path) -> Path:
    """A folder with the two runs that the page of problems speaks of."""
    names = ("--env", "my_envs.py:Dot", "--lanes", "1", "--episodes", "4")
    for run, policy in (("a", "my_policies.py:Homing"), ("b", "random")):
        done = run_here(folder, "eval", *names, "--policy", policy, "--out", f"runs/{run}")
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_command_of_the_problems_page_answers(solved: Path) -> None:
    lines = [line for block in blocks("docs/problems.md", "sh") for line in block.splitlines()]
    assert len(lines) > 12
    for line in lines:
        words = shlex.split(line)[1:]
        done = run_here(solved, *words, *(["--help"] if words == ["doctor"] else []))
        assert done.returncode == 0, f"{line}\n{done.stderr}{done.stdout}"


def test_an_env_of_the_documents_is_evaluated_with_its_own_flags(folder: Path) -> None:
    command = next(line for line in commands() if "dots:Dots" in line)
    done = run(folder, "-m", "hocket", *shlex.split(command)[1:], "--json")
    report = json.loads(done.stdout)
    assert report["config"]["env_config"] == {"easy": True}
    assert [score["task"] for score in report["tasks"]] == ["ice", "wood"]


def test_the_torch_module_of_the_documents_is_evaluated(folder: Path) -> None:
    command = next(line for line in commands() if "linear:make" in line)
    done = run(folder, "-m", "hocket", *shlex.split(command)[1:], "--lanes", "1", "--json")
    assert json.loads(done.stdout)["overall"]["n"] == 2


@pytest.mark.usefixtures("inside")
def test_the_examples_of_the_help_are_understood() -> None:
    lines = [line.partition("#")[0] for line in EXAMPLES.splitlines()[1:]]
    assert len(lines) >= 5
    for line in lines:
        words = shlex.split(line.replace("my_package.models:MyPolicy", "my_policies:Homing"))
        assert_understood([*words[1:], *([] if words[1] == "plan" else ["--help"])])


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    for link in links:
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_readme_leads_to_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name}" in text, page.name


def test_paths_in_the_architecture_page_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    assert len(named) > 5
    for name in named:
        assert (ROOT / "src" / "hocket" / name).exists() or (ROOT / name).exists(), name


def test_no_link_in_the_documents_is_broken() -> None:
    for page in ALL_PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


@pytest.mark.slow
@pytest.mark.timeout(400)
@needs_venv("vla-eval")
def test_each_dialect_gives_a_first_report_in_the_commands_shown(folder: Path) -> None:
    """Servers are started as shown, by free ports for those of the page."""
    lines = [
        line
        for block in blocks("docs/openpi.md", "sh")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    ports = {"8000": str(free_port()), "8001": str(free_port())}
    lines = [re.sub(r"\b800[01]\b", lambda found: ports[found[0]], line) for line in lines]
    (folder / "venvs").symlink_to(ROOT / "venvs")
    servers, reports = [], 0
    try:
        for line in lines:
            words = shlex.split(line.removesuffix("&"))
            if words[0] == "hocket":
                words = [sys.executable, "-m", *words]
            if line.endswith("&"):
                servers.append(subprocess.Popen(words, cwd=folder))
            elif "eval" in words:
                done = run(folder, *words[1:], "--json", "--lanes", "2")
                assert json.loads(done.stdout)["overall"]["n"] == 4, line
                reports += 1
    finally:
        for server in servers:
            server.kill()
            server.wait()
    assert (len(servers), reports) == (2, 5)
