"""The web pages as a user sees them: `trace up`, a run by its deployment, and both interfaces in a real browser.

The browser reaches this machine only: a page that asked another host for anything would fail the test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.params.root import Params
from flows import services
from flows.services import free_port

REPOSITORY = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 300.0  # seconds, for a busy machine
TASKS = (
    "evaluate", "score prompts", "allocate roots", "generate", "verify factual", "refill roots", "expand prefixes",
    "verify counterfactual", "refit predictor", "update policy", "record", "retain",
)  # fmt: skip
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@dataclass(frozen=True)
class Finished:
    """A finished run: its name, and its page in Prefect as `prefect deployment run` told it."""

    run_id: str
    prefect: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Iterator[Finished]:
    root = tmp_path_factory.mktemp("uis")
    for name in ("flows", "tasks", "components", "prefect.yaml"):
        (root / name).symlink_to(REPOSITORY / name)
    chosen = params.model_dump() | {"tracking": {"mlflow": True}}
    (root / "params.yaml").write_text(yaml.safe_dump(chosen))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    environment |= {"PYTHONPATH": str(REPOSITORY), "DO_NOT_TRACK": "1"}

    def command(module: str, *arguments: str, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=root, env=environment | more, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        ports = ["--prefect-port", str(free_port()), "--mlflow-port", str(free_port())]
        told = command("flows.cli", "up", *ports)
        where = {line.split()[0]: line.split()[1] for line in told.splitlines() if line.startswith("  ")}
        asked = ["deployment", "run", "trace/train", "-p", "arm=grpo", "-p", "seed=3"]
        api = f"{where['Prefect']}/api"
        said = command("prefect", *asked, PREFECT_API_URL=api, PREFECT_HOME=str(root / "elsewhere"))
        page = next(line.split("URL: ")[1].strip() for line in said.splitlines() if "URL: " in line)
        _until(lambda: _state(f"{api}/flow_runs/{page.rpartition('/')[2]}") == "COMPLETED")
        yield Finished((root / "runs/latest").resolve().name, page)
    finally:
        services.down(root, say=lambda line: None)


@pytest.fixture
def page(finished: Finished) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    outside: list[str] = []
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = chromium.new_page(viewport={"width": 1440, "height": 1000})
        shown.set_default_timeout(60_000)
        local = ("http://127.0.0.1:", "data:", "blob:")
        shown.on("request", lambda request: request.url.startswith(local) or outside.append(request.url))
        yield shown
        chromium.close()
    assert outside == []


def test_prefect_shows_the_run_its_table_and_every_task(finished: Finished, page: Any) -> None:
    name = finished.run_id
    assert name.startswith("grpo-s3-")
    page.goto(finished.prefect)
    _text(page, name).wait_for()
    _text(page, "Completed").wait_for()
    _open_table(finished, page)
    page.get_by_text("arm grpo, seed 3, 2 iterations").first.wait_for()
    page.locator("tbody tr").nth(1).wait_for()
    cells = [row.split("\t") for row in page.locator("table").first.inner_text().splitlines() if row.count("\t") > 2]
    assert cells[0] == ["iteration", "accuracy", "effective ratio", "units", "tokens", "seconds"]
    assert [row[0] for row in cells[1:]] == ["0", "1"]

    page.goto(finished.prefect)
    _text(page, "Subflow Runs").click()
    _text(page, f"{name}-0001").click()
    _text(page, "Task Runs").click()
    for task in TASKS:
        _text(page, task).wait_for()
    _text(page, "Artifacts").click()
    _text(page, name).wait_for()
    page.get_by_text(f"Run {name}, iteration 1: where the budget went").first.wait_for()


def test_the_link_in_prefect_opens_the_trees_in_mlflow(finished: Finished, page: Any) -> None:
    _open_table(finished, page)
    trees = page.get_by_role("link", name="the newest trees, turn by turn").first
    page.goto(trees.get_attribute("href"))
    viewer = page.frame_locator("iframe.mlflow-html-iframe")  # a sandbox, which allows scripts and nothing else
    viewer.get_by_text(f"Run {finished.run_id}, iteration 1").first.wait_for()
    assert viewer.locator("#count").inner_text() == "8 of 8 trees"  # 32 units in groups of 4
    assert viewer.locator("svg g.node").count() > 4
    viewer.locator("#find").fill("no such prompt")
    viewer.get_by_text("0 of 8 trees").wait_for()


@pytest.mark.parametrize("metric", ["effective_ratio/prompts", "eval/accuracy", "budget/units", "predictor/brier"])
def test_mlflow_draws_a_point_an_iteration(finished: Finished, page: Any, metric: str) -> None:
    _open_table(finished, page)
    page.goto(page.get_by_role("link", name="charts", exact=True).first.get_attribute("href"))
    _text(page, finished.run_id).wait_for()
    page.get_by_placeholder("Search metric charts").fill(f"^{metric}$")
    legend = page.get_by_text(f"{finished.run_id} ({metric})").first
    legend.wait_for()
    _until(lambda: page.locator(".js-plotly-plot .point").count() == 2)
    assert page.locator(".js-plotly-plot").count() == 1


def _open_table(finished: Finished, page: Any) -> None:
    page.goto(finished.prefect)
    _text(page, "Artifacts").click()
    _text(page, f"{finished.run_id}-iterations").click()


def _text(page: Any, text: str) -> Any:
    return page.get_by_text(text, exact=True).first


def _state(flow_run: str) -> str:
    """The state of a flow run by its address in the API; a failed one ends the test."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(flow_run, timeout=60) as response:
        state = json.load(response)["state"]
    assert state["type"] not in ("FAILED", "CRASHED", "CANCELLED"), state["message"]
    return str(state["type"])


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.5)
