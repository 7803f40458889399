"""A run is handed on to a stand-in of the hub, through the hub's own library."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from support.commands import command
from support.hub_stand_in import take_repository
from support.processes import DEADLINE_S

TOKEN = "hf_" + "x" * 34


def push(
    run: Path, to: str, endpoint: str, *flags: str, token: str = TOKEN
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("push", str(run), "--to", to, *flags),
        env={**os.environ, "HF_ENDPOINT": endpoint, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_a_place_that_is_no_repository_of_the_hub_is_refused(image_run: Path) -> None:
    done = push(image_run, "gs://bucket", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "hf:USER/NAME or hf:datasets/USER/NAME, not 'gs://bucket'" in done.stderr


@pytest.mark.slow
class TestPush:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("huggingface_hub")

    def test_a_model_gets_card_page_films_and_scores(self, image_run: Path) -> None:
        with take_repository("user/act", TOKEN, "models") as pushed:
            done = push(image_run, "hf:user/act", pushed.endpoint, "--dataset", "owner/toys")
        assert done.returncode == 0, done.stderr
        place = f"evals/{image_run.name}"
        films = {f"{place}/{p.relative_to(image_run)}" for p in image_run.rglob("*.mp4")}
        own = {f"{place}/{name}" for name in ("card.json", "card.md", "report.html")}
        (scores,) = set(pushed.files) - films - own
        assert set(pushed.files) == films | own | {scores}
        assert scores.startswith(".eval_results/")
        first = yaml.safe_load(pushed.files[scores])[0]
        assert first["dataset"] == {"id": "owner/toys", "task_id": "overall"}
        assert first["source"]["url"] == f"{pushed.endpoint}/user/act/blob/main/{place}/card.md"
        assert pushed.files[f"{place}/report.html"] == (image_run / "report.html").read_bytes()

    def test_a_dataset_gets_no_scores_and_films_may_stay(self, image_run: Path) -> None:
        with take_repository("user/runs", TOKEN) as pushed:
            to = "hf:datasets/user/runs"
            done = push(image_run, to, pushed.endpoint, "--no-films")
        assert done.returncode == 0, done.stderr
        names = {name.rpartition("/")[2] for name in pushed.files}
        assert names == {"card.json", "card.md", "report.html"}

    def test_a_wrong_token_is_told_in_a_sentence(self, image_run: Path) -> None:
        with take_repository("user/act", TOKEN, "models") as pushed:
            done = push(image_run, "hf:user/act", pushed.endpoint, token="hf_other")
        assert done.returncode == 2
        assert "does not let you (401): give it your token" in done.stderr
