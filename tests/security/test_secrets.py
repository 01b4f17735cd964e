"""Secrets stay here, code of models runs as nobody, and nothing of a run's name or data leads out of its folder."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from io import StringIO
from types import SimpleNamespace

import psutil
import pytest

from components.environments.search import Search, SearchParams
from components.environments.search.retrieval import RetrievalError
from components.environments.search.retrieval_http import HttpRetriever
from components.params.root import compose
from components.secrets import MaskSecrets, masked
from flows.cli import _printable
from tasks.mlflow_sync import MlflowSync
from tasks.run import open_run

SECRET = "wJalrXUtnFEMI/K7MDENG"
VARIABLES = ["AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "HF_TOKEN", "PREFECT_API_KEY", "MY_CREDENTIALS"]
URLS = [
    f"http://user:{SECRET}@host:8000/retrieve",
    f"postgresql://u:{SECRET}@host/db?sslmode=require",
    f"http://u:p@{SECRET}@host/",
    f"https://host/x?a=1&api_key={SECRET}&b=2",
    f"https://host/x?token={SECRET}",
    f"s3://key:{SECRET}@bucket/path",
]


@pytest.mark.parametrize("url", URLS)
def test_credentials_in_urls_are_masked_wherever_they_stand(url):
    for text in (url, f"cannot reach '{url}': refused", f"{url} {url}", f"{{'retriever': '{url}'}}"):
        assert SECRET not in masked(text)
        assert "***" in masked(text)
        assert "host" in masked(text) or "bucket" in masked(text)


def test_user_alone_is_masked():
    assert masked("https://ghp_0123456789@host/x, next") == "https://***@host/x, next"


@pytest.mark.parametrize("variable", VARIABLES)
def test_values_of_secret_variables_are_masked(variable, monkeypatch):
    monkeypatch.setenv(variable, SECRET)
    assert masked(f"failed with {SECRET}.") == "failed with ***."


@pytest.mark.parametrize(
    "text", ["user@example.org", "http://host:80/a@b", "a token of love", "https://host/?q=key", "1e-3", ""]
)
def test_ordinary_text_is_left_alone(text, monkeypatch):
    monkeypatch.setenv("SHORT_TOKEN", "true")  # no secret: it would mask every "true"
    assert masked(text) == text
    assert masked("true") == "true"


def test_log_lines_of_a_run_are_masked(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    import tasks.stage  # noqa: F401 - adds the filter

    stream = StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("trace")
    logger.addHandler(handler)
    try:
        logger.warning("the first: %s", f"no answer from http://u:{SECRET}@host with {SECRET}")
    finally:
        logger.removeHandler(handler)
    assert stream.getvalue() == "the first: no answer from http://***@host with ***\n"
    assert any(isinstance(each, MaskSecrets) for each in logger.filters)


def test_errors_at_the_command_line_are_masked_and_can_be_printed(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)
    shown = _printable(f"cannot read \udcff[bold] at http://u:{SECRET}@host, {SECRET}")
    assert SECRET not in shown
    assert "***@host" in shown
    shown.encode()


def test_what_goes_to_mlflow_is_masked(tmp_path, monkeypatch):
    """The run's own params.yaml keeps the URL: a continued run asks the same server."""
    (tmp_path / "config.json").touch()
    task = {"name": "search", "retriever": URLS[0]}
    run = open_run(
        compose({"run": {"runs_dir": str(tmp_path)}, "environment": task, "policy": {"path": str(tmp_path)}}), "r"
    )
    monkeypatch.setenv("HF_TOKEN", SECRET)
    sent: list[object] = []

    class Client:
        def __getattr__(self, name: str):
            def call(*args, **kwargs):
                sent.append([name, *map(_plain, args), {k: _plain(v) for k, v in kwargs.items()}])
                run = SimpleNamespace(run_id="1", status="RUNNING", experiment_id="1")
                found = SimpleNamespace(info=run, data=SimpleNamespace(params={}, metrics={}), experiment_id="1")
                return [] if name == "search_runs" else found

            return call

    import mlflow

    monkeypatch.setattr(mlflow, "MlflowClient", Client)
    sync = MlflowSync(run, {"data": "x"})
    sync._connect()
    assert "http://***@host:8000/retrieve" in str(sent)
    assert SECRET not in str(sent)
    sync._attempt(lambda: (_ for _ in ()).throw(OSError(f"API request to {URLS[0]} failed")))
    assert sync.failure == "OSError: API request to http://***@host:8000/retrieve failed"


def _plain(value: object) -> object:
    return [_plain(v) for v in value] if isinstance(value, list) else getattr(value, "__dict__", value)


def test_password_of_a_search_server_is_in_no_message_and_no_record(tmp_path):
    url = f"http://u:{SECRET}@127.0.0.1:9/retrieve"
    with pytest.raises(RetrievalError) as error:
        HttpRetriever(url, retries=0, timeout=5).retrieve(["q"])
    assert SECRET not in str(error.value)
    assert SECRET not in Search(SearchParams(retriever=url, record=str(tmp_path / "record.db"))).retriever.settings


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only what root starts can become nobody's")
def test_confined_code_that_root_started_is_nobodys():
    code = "from components.workers.confine import confine; confine(); print('ready', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        state = psutil.Process(process.pid)
        assert (set(state.uids()), set(state.gids())) == ({65534}, {65534})
        with open(f"/proc/{process.pid}/status") as lines:
            status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        assert (status["Groups"], int(status["CapEff"], 16), status["NoNewPrivs"]) == ("", 0, "1")
    finally:
        process.kill()
        process.communicate()
