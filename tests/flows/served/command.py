"""A command that runs the flow beside it with a Prefect server of its own, and waits for Ctrl-C."""

import os
import signal
import sys
import time
from pathlib import Path

from flows import services
from flows.temporary_server import prefect_api

signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
os.environ.update(services.environment(Path.cwd()) | {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"})
os.environ["MLFLOW_TRACKING_URI"] = services.mlflow_uri(Path.cwd())
with prefect_api(Path.cwd()) as api:
    print(api.url, flush=True)
    from train import trace

    api.wait()
    trace()
    print("flow done", flush=True)
    time.sleep(60)
