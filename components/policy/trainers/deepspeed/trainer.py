"""The trainer of several processes: the steps of the one-process trainer, taken by DeepSpeed (ZeRO 0 to 3).

DeepSpeed's launcher starts the processes on this machine; see `worker` for what they do. The checkpoint is like the
one-process trainer's, and so are Adam's moments: another number of processes, another ZeRO stage, or the other trainer,
go on from it.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

from components.errors import UserError
from components.policy.faults import first_error
from components.policy.trainers.base import Trainer, Update
from components.policy.trainers.deepspeed.params import DeepSpeedParams
from components.registry import loaded_plugins
from components.storage import read_json, write_json, write_parquet
from components.tree.advantages import terms_of
from components.tree.forest import Forest

WORKER = "components.policy.trainers.deepspeed.worker"
LAUNCHER = (  # where mlflow is installed, DeepSpeed imports it, which takes seconds of every update
    "import runpy, sys; sys.modules['mlflow'] = None; "
    "runpy.run_module('deepspeed.launcher.launch', run_name='__main__', alter_sys=True)"
)
logger = logging.getLogger("trace")


class DeepSpeedTrainer(Trainer):
    """The update by processes of its own; see `Trainer` for the arguments."""

    def __init__(self, settings: DeepSpeedParams, temperature: float, threads: int) -> None:
        self.settings, self.temperature, self.threads = settings, temperature, threads

    def update(self, forest: Forest, policy: Path, target: Path, seed: int, fresh: bool = False) -> Update:
        """What the processes print goes to `deepspeed.log` beside the target.

        Raises:
            FloatingPointError: if the loss or the gradient is not finite.
            UserError: if a process fails in another way; it names the log.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".deepspeed.tmp-", dir=target.parent) as name:
            folder = Path(name).absolute()
            write_parquet(folder / "forest.parquet", forest.to_table())
            job = {"policy": policy.absolute(), "target": target.absolute(), "seed": seed, "fresh": fresh}
            job |= {"temperature": self.temperature, "threads": self.threads, "settings": self.settings.model_dump()}
            write_json(folder / "job.json", job | {"plugins": loaded_plugins()})
            launch(WORKER, [folder], self.settings.processes, self.threads, target.parent / "deepspeed.log")
            metrics, lines = read_json(folder / "metrics.json"), read_json(folder / "log.json")
        for level, message in lines:  # the run's log is this process's
            logger.log(level, message)
        metrics = {key: float("nan") if value is None else value for key, value in metrics.items()}
        terms = terms_of(forest, self.settings.advantage)
        return Update(metrics | terms.metrics(), terms.advantage_N(len(forest)).tolist())


def launch(module: str, folders: list[Path], processes: int, threads: int, log: Path) -> None:
    """Runs DeepSpeed's launcher to its end. It ends all processes if one fails, and they end if this process does.

    Args:
        module: What each process runs, with `folders` as its arguments.
        folders: Of the jobs; each must hold `metrics.json` in the end.
        processes: On this machine, one per GPU.
        threads: CPU threads of each.
        log: File for what they print.
    """
    world = base64.urlsafe_b64encode(json.dumps({"localhost": _devices(processes)}).encode()).decode()
    command = [sys.executable, "-c", LAUNCHER, f"--world_info={world}"]
    command += ["--master_addr=127.0.0.1", f"--master_port={_free_port()}", "--no_local_rank"]
    command += ["--module", module, *map(str, folders)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "OMP_NUM_THREADS": str(threads),
    }
    if not torch.cuda.is_available():
        environment["DS_ACCELERATOR"] = "cpu"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,  # closed by this process's death, which the workers see
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # one signal reaches all of them
        )
        try:
            process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
    for path in (folder / "error.json" for folder in folders):
        if path.exists():
            error = read_json(path)
            raise (FloatingPointError if error["kind"] == "FloatingPointError" else UserError)(error["message"])
    if process.returncode != 0 or not all((folder / "metrics.json").exists() for folder in folders):
        raise UserError(f"DeepSpeed failed: {first_error(log)}; see {log}")


def _devices(processes: int) -> list[int | str]:
    """Numbers of the GPUs to use, of those that this process may see; without any, just numbers."""
    if not torch.cuda.is_available():
        return list(range(processes))
    if processes > torch.cuda.device_count():
        raise UserError(f"update.processes={processes}: only {torch.cuda.device_count()} GPUs are visible")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(visible.split(",")[:processes]) if visible else list(range(processes))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
