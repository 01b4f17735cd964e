"""MLflow gets metrics.jsonl, best-effort: a failure there never stops training, an outage only delays what it shows.

The work is done in a thread of its own, so that neither MLflow's import nor a slow server holds the run up. It logs
every line that MLflow does not have yet, under a run id that the manifest keeps: a continued run continues there.
Runs of this machine that were killed are marked so when the next one begins.
"""

from __future__ import annotations

import getpass
import logging
import math
import platform
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from prefect.exceptions import CancelledRun

from components.params.root import flatten
from components.secrets import masked
from tasks.run import Run, is_locked
from tasks.stage import Stopped, read_stages

logger = logging.getLogger("trace")


class MlflowSync:
    """Keeps the MLflow run up to date while a `with` block lasts.

    Args:
        run: The run that MLflow shows.
        tags: Tags of the MLflow run, e.g. hashes of its data.
        wait: Seconds that the end of the block waits for what is still to be logged.
    """

    def __init__(self, run: Run, tags: dict[str, str], wait: float = 30.0) -> None:
        self.run, self.tags, self.wait = run, tags, wait
        self.failure: str | None = None
        self._began = time.time()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._client: Any = None
        self._mlflow_run_id: str | None = None
        self._logged = -1
        self._thread = threading.Thread(target=self._work, name="mlflow-sync", daemon=True)

    def __enter__(self) -> MlflowSync:
        if self.run.params.tracking.mlflow:
            self._wake.set()  # MLflow shows the run from its start, and others can name its page
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._thread.is_alive():
            return
        self._closing.set()
        self._wake.set()
        ended = time.time()
        self._thread.join(self.wait)
        if self._thread.is_alive():
            self.failure = f"MLflow did not answer within {self.wait:g} s"
        elif self._client is not None and self.failure is None:
            self._attempt(lambda: self._finish(_status(kind), ended))
        if self.failure:
            logger.warning(
                "MLflow does not have all of run %s (%s); %s has", self.run.run_id, self.failure, self.run.metrics_path
            )

    def notify(self) -> None:
        """Says that metrics.jsonl has a new line."""
        self._wake.set()

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            self._attempt(self._sync)
            if self._closing.is_set():
                return

    def _attempt(self, work: Any) -> None:
        try:
            work()
            self.failure = None
        except Exception as error:  # whatever MLflow raises: the run goes on
            self._client = None  # what MLflow has is asked anew, since a request may have reached it unanswered
            self.failure = masked(f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}")

    def _sync(self) -> None:
        from mlflow.entities import Metric

        if self._client is None:
            self._connect()
        for line in self.run.metrics(self._logged + 1):
            at = _milliseconds(_changed(self.run.iteration(line["iteration"]) / "metrics.json"))
            known = {k: float(v) for k, v in line.items() if v is not None and math.isfinite(v)}
            metrics = [Metric(k, v, at, line["iteration"]) for k, v in known.items()]
            self._client.log_batch(self._mlflow_run_id, metrics=metrics)
            self._logged = line["iteration"]
            if (trees := self.run.iteration(self._logged) / "trees.html").exists():  # only the newest iteration's
                self._client.log_artifact(self._mlflow_run_id, str(trees))

    def _connect(self) -> None:
        import mlflow
        from mlflow.entities import Param, RunTag

        logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of every table that it makes
        client, params = mlflow.MlflowClient(), self.run.params
        found = self._find(client) or self._create(client)
        self._mlflow_run_id, before = found.info.run_id, found.data.params
        self._logged = int(found.data.metrics.get("iteration", -1))
        if found.info.status != "RUNNING":
            client.update_run(self._mlflow_run_id, status="RUNNING")
        flat = {key: masked(str(value))[:500] for key, value in flatten(params.model_dump()).items()}
        new = [Param(k, v) for k, v in flat.items() if k not in before]
        changed = {f"now.{k}": v for k, v in flat.items() if before.get(k, v) != v}  # a parameter is written once
        tags = self.tags | _tags(self.run) | changed
        client.log_batch(self._mlflow_run_id, params=new, tags=[RunTag(k, v) for k, v in tags.items()])
        client.log_text(self._mlflow_run_id, masked((self.run.path / "params.yaml").read_text("utf-8")), "params.yaml")
        self._client = client
        self._mark_killed(client, found.info.experiment_id)

    def _find(self, client: Any) -> Any:
        """The MLflow run that the manifest names; None where there is none."""
        from mlflow.exceptions import MlflowException

        known = self.run.manifest.get("mlflow_run_id")
        try:
            return known and client.get_run(known)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _create(self, client: Any) -> Any:
        name = self.run.params.tracking.experiment
        experiment = client.get_experiment_by_name(name)
        kind = {"mlflow.experimentKind": "custom_model_development"}  # the pages for training, not those for prompts
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(name, tags=kind)
        earlier = [
            entry["began"] for entry in read_stages(self.run.iteration(0)).values()
        ]  # of a run that MLflow missed
        start = _milliseconds(min([self._began, *earlier]))
        created = client.create_run(experiment_id, start, _tags(self.run), self.run.run_id)
        self.run.note(mlflow_run_id=created.info.run_id, mlflow_experiment_id=experiment_id)
        return created

    def _mark_killed(self, client: Any, experiment_id: str) -> None:
        """Marks as killed the runs of this machine that MLflow holds for running and that no process writes."""
        where = f"attributes.status = 'RUNNING' and tags.host = '{platform.node()}'"
        for other in client.search_runs([experiment_id], where):
            folder = Path(other.data.tags["folder"])
            if other.info.run_id != self._mlflow_run_id and not (folder.exists() and is_locked(Run(folder))):
                client.set_terminated(other.info.run_id, "KILLED", _milliseconds(_changed(folder / "metrics.jsonl")))

    def _finish(self, status: str, ended: float) -> None:
        done = len(self.run.metrics())
        if (accuracy := self.run.accuracy_after(done)) is not None:  # of the policy after the last update
            self._client.log_metric(self._mlflow_run_id, "eval/accuracy", accuracy, step=done)
        for path in (self.run.metrics_path, self.run.path / "summary.json", self.run.path / "report.html"):
            if path.exists():
                self._client.log_artifact(self._mlflow_run_id, str(path))
        self._client.set_terminated(self._mlflow_run_id, status, _milliseconds(ended))


def _status(kind: type[BaseException] | None) -> str:
    """What MLflow calls the end of a run: one that was interrupted or cancelled was killed and did not fail."""
    if kind is None:
        return "FINISHED"
    return "FAILED" if issubclass(kind, Exception) and not issubclass(kind, Stopped | CancelledRun) else "KILLED"


def _tags(run: Run) -> dict[str, str]:
    """What finds a run among others, and the tags that MLflow shows as source, user and version."""
    params = run.params
    tags = {
        "arm": params.allocation.arm,
        "task": params.environment.name,
        "seed": str(params.run.seed),
        "host": platform.node(),
        "folder": str(run.path),
        "mlflow.source.name": "trace train",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": run.manifest.get("commit"),
    }
    with suppress(OSError, KeyError):  # of a user without a name, as in some containers
        tags["mlflow.user"] = getpass.getuser()
    return {name: value for name, value in tags.items() if value}


def _changed(path: Path) -> float:
    """When a file was last written; now where it is not there."""
    return path.stat().st_mtime if path.exists() else time.time()


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
