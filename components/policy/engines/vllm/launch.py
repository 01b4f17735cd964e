"""vLLM servers that a run starts for itself, on loopback, and that end with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from components.errors import UserError
from components.policy.engines.vllm import server as vllm_server
from components.policy.engines.vllm.params import VllmParams
from components.policy.faults import first_error

ROOT = Path(__file__).resolve().parents[4]  # where `components` is imported from
START_SECONDS = 1800.0  # a large model is read from disk first
GRACE_SECONDS = 15.0


@dataclass
class Launched:
    """A server of our own."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> str | None:
        """The first error in its log if it has ended: later ones are what it led to."""
        code = self.process.poll()
        return None if code is None else f"ended with code {code}: {first_error(self.log)} ({self.log})"


def options(settings: VllmParams) -> dict[str, object]:
    """vLLM's options for the engine, in its own words."""
    return {
        "dtype": settings.dtype,
        "max_model_len": settings.max_tokens,
        "max_num_seqs": settings.batch_size,
        "tensor_parallel_size": settings.tensor_parallel,
        "gpu_memory_utilization": settings.gpu_memory,
    }


def launch(settings: VllmParams, policy: Path) -> list[Launched]:
    """Starts `settings.servers` servers and waits until they answer.

    Raises:
        UserError: if one ends before; the message holds the first error in its log. None is left running then.
    """
    folder = Path(tempfile.mkdtemp(prefix="trace-vllm-"))
    launched: list[Launched] = []
    try:
        for number in range(int(settings.servers)):  # type: ignore[arg-type]
            launched.append(_start(settings, policy, number, folder / f"server-{number}.log"))
        for server in launched:
            _wait(server)
    except BaseException:
        stop(launched)
        raise
    return launched


def _start(settings: VllmParams, policy: Path, number: int, log: Path) -> Launched:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONHOME", None)
    if settings.servers != 1:  # each server takes the next GPUs
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        count = settings.tensor_parallel
        devices = visible.split(",") if visible else [str(n) for n in range((number + 1) * count)]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices[number * count : (number + 1) * count])
    command = [str(Path(settings.python).absolute()), "-m", vllm_server.__name__, "--stop-with-parent"]
    command += vllm_server.flags({"model": policy.absolute(), "port": port} | options(settings))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    return Launched(f"http://127.0.0.1:{port}", process, log)


def _wait(server: Launched) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if fault := server.ended():
            raise UserError(f"a vLLM server did not start: it {fault}")
        with contextlib.suppress(OSError), opener.open(f"{server.url}/health", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise UserError(f"a vLLM server was not ready after {START_SECONDS:g} s; see {server.log}")


def stop(launched: list[Launched]) -> None:
    """Ends the servers and all that they started; the logs of those that lived till now are deleted."""
    lived = [server for server in launched if server.process.poll() is None]
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for server in launched:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.process.pid, sent)
        deadline = time.monotonic() + GRACE_SECONDS
        for server in launched:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(max(0.0, deadline - time.monotonic()))
    if len(lived) == len(launched):
        shutil.rmtree(launched[0].log.parent, ignore_errors=True)
