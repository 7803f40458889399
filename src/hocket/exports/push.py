"""Hands a run on: its card, page and films to a repository of Hugging Face's hub, and its scores to
the model's page there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hocket.adapters.hub import Repository
from hocket.errors import UsageError
from hocket.records.folder import RunFolder
from hocket.results.page.document import BESIDE
from hocket.results.page.report_page import FILE_NAME as PAGE
from hocket.results.run_folder import rebuild_report
from hocket.runs.checks.card import HUB_FOLDER, write_card
from hocket.runs.demonstrations.chosen import Watcher

HEAD = "hf:"
DATASETS = "datasets/"
RUNS = "evals"
"""The folder of a repository that runs are pushed to, each by its name."""
_FILMS = "episodes/**/*.mp4"


def repository_of(to: str) -> Repository:
    """The repository that `hf:USER/NAME`, a model's, or `hf:datasets/USER/NAME` means, which is
    made where it is not there yet."""
    if not to.startswith(HEAD):
        raise UsageError(f"A run is pushed to hf:USER/NAME or hf:datasets/USER/NAME, not {to!r}.")
    name = to.removeprefix(HEAD)
    if name.startswith(DATASETS):
        return Repository(name.removeprefix(DATASETS), "dataset")
    return Repository(name, "model")


def push_run(
    folder: Path,
    repository: Repository,
    watcher: Watcher,
    *,
    films: bool = True,
    dataset: str | None = None,
    as_request: bool = False,
) -> str:
    """Push a run as one commit, or `as_request`, as a pull request; returns where it then is.
    `dataset` names the benchmark's dataset, in whose list the scores stand."""
    root = RunFolder.at(folder).root
    report = rebuild_report(root)
    if not report.complete:
        watcher.note(f"{len(report.episodes)} of {report.planned} trials have ended.")
    place = f"{RUNS}/{root.name}"
    with tempfile.TemporaryDirectory() as made:
        page = f"{repository.address}/blob/main/{place}/card.md"
        cards = write_card(root, Path(made), dataset=dataset, source=page)
        own = {f"{place}/{path.name}": path for path in cards[:2]}
        if repository.kind == "model":
            own |= {f"{HUB_FOLDER}/{path.name}": path for path in cards[2:]}
        kept = [root / PAGE, root / BESIDE, *(sorted(root.glob(_FILMS)) if films else ())]
        own |= {f"{place}/{path.relative_to(root).as_posix()}": path for path in kept}
        files = {name: path for name, path in own.items() if path.is_file()}
        return repository.add(files, f"Add the run {root.name}", as_request=as_request)
