"""MLflow mirrors metrics.jsonl, best-effort: a tracking failure never stops training, an outage only delays the mirror.

The mirror works in a thread of its own, so that neither MLflow's import nor a slow server holds the run up. It logs
every line that MLflow does not have yet, under a run id that the manifest keeps: a continued run continues there.
Runs of this machine that were killed are marked so when the next one begins.
"""

from __future__ import annotations

import logging
import math
import platform
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from components.params.root import flatten
from components.secrets import masked
from components.tracking.plots import curves
from tasks.run import Run, is_locked

logger = logging.getLogger("trace")


class MlflowSync:
    """Keeps the MLflow run up to date while a `with` block lasts.

    Args:
        run: The run to mirror.
        tags: Tags of the MLflow run, e.g. hashes of its data.
        wait: Seconds that the end of the block waits for what is still to be logged.
    """

    def __init__(self, run: Run, tags: dict[str, str], wait: float = 30.0) -> None:
        self.run, self.tags, self.wait = run, tags, wait
        self.failure: str | None = None
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
        self._thread.join(self.wait)
        status = "FINISHED" if kind is None else "FAILED"
        if self._thread.is_alive():
            self.failure = f"MLflow did not answer within {self.wait:g} s"
        elif self._client is not None and self.failure is None:
            self._attempt(lambda: self._finish(status))
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
        now = int(time.time() * 1000)
        for line in self.run.metrics(self._logged + 1):
            known = {k: float(v) for k, v in line.items() if v is not None and math.isfinite(v)}
            metrics = [Metric(k, v, now, line["iteration"]) for k, v in known.items()]
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
        tags = self.tags | {"host": platform.node(), "folder": str(self.run.path)} | changed
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
        created = client.create_run(experiment_id, run_name=self.run.run_id)
        self.run.note(mlflow_run_id=created.info.run_id, mlflow_experiment_id=experiment_id)
        return created

    def _mark_killed(self, client: Any, experiment_id: str) -> None:
        """Marks as killed the runs of this machine that MLflow holds for running and that no process writes."""
        where = f"attributes.status = 'RUNNING' and tags.host = '{platform.node()}'"
        for other in client.search_runs([experiment_id], where):
            folder = Path(other.data.tags["folder"])
            if other.info.run_id != self._mlflow_run_id and not (folder.exists() and is_locked(Run(folder))):
                client.set_terminated(other.info.run_id, "KILLED")

    def _finish(self, status: str) -> None:
        lines = self.run.metrics()
        last = self.run.iteration(lines[-1]["iteration"]) if lines else self.run.path
        for path, folder in (
            (self.run.metrics_path, None),
            (self.run.path / "summary.json", None),
            (self.run.path / "report.html", None),
            (last / "report.html", last.name),
        ):
            if path.exists():
                self._client.log_artifact(self._mlflow_run_id, str(path), folder)
        if lines:
            self._client.log_figure(self._mlflow_run_id, curves(lines), "curves.png")
        self._client.set_terminated(self._mlflow_run_id, status)
