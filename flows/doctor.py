"""`trace doctor`: what is installed, what is missing for which feature, and which servers are up."""

from __future__ import annotations

import os
import shutil
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

from components.policy.engines.vllm.params import VllmParams

CORE = ("torch", "transformers", "prefect", "mlflow", "dvc", "pandas", "pyarrow")
EXTRAS = {
    "math": ("math-verify", "mathematical problems (environment.name: math)"),
    "hub": ("datasets", "data files from the Hugging Face hub (environment.files: hub:owner/name:split)"),
    "deepspeed": ("deepspeed", "training on several GPUs (update.trainer: deepspeed)"),
    "s3": ("s3fs", "runs in an S3 store (run.store)"),
    "dask": ("prefect-dask", "verifiers and slow tools on several machines (run.cluster)"),
    "lora": ("peft", "training low-rank adapters (update.lora.rank)"),
    "bench": ("trl", "comparison with TRL (make bench)"),
    "dev": ("pytest", "tests and checks (make test, make check)"),
}


def examine(console: Console) -> bool:
    """Prints the findings; returns whether the embedded default can run."""
    table = Table("what", "found", "for", box=None)
    missing = [name for name in CORE if _version(name) is None]
    for name in CORE:
        table.add_row(
            name,
            _version(name) or "[red]missing[/]",
            "the core: uv pip install -e . -c constraints.txt" if name in missing else "",
        )
    for extra, (package, purpose) in EXTRAS.items():
        version = _version(package)
        advice = purpose if version else f"{purpose}; install with: uv pip install -e '.\\[{extra}]' -c constraints.txt"
        table.add_row(package, version or "[yellow]missing[/]", advice)
    bfcl = _version("bfcl-eval")
    advice = "" if bfcl else "; install with: make functions"
    purpose = f"function calling (environment.name: functions){advice}"
    table.add_row("bfcl-eval", bfcl or "[yellow]missing[/]", purpose)
    found = os.access(VllmParams().python, os.X_OK)
    advice = "" if found else "; install with: make vllm"
    table.add_row("vllm", "found" if found else "[yellow]missing[/]", f"fast sampling (engine.name: vllm){advice}")
    if "torch" not in missing:
        import torch

        gpus = torch.cuda.device_count()
        table.add_row(
            "GPU",
            f"{gpus} × {torch.cuda.get_device_name(0)}" if gpus else "none",
            "" if gpus else "the embedded default needs none",
        )
    free = shutil.disk_usage(".").free / 2**30
    table.add_row("disk", f"{free:.0f} GiB free", "" if free > 2 else "[yellow]runs may not fit[/]")
    writable = os.access(".", os.W_OK)
    table.add_row("folder", str(Path.cwd()), "" if writable else "[red]cannot be written to[/]")
    table.add_row(
        "params.yaml",
        "found" if Path("params.yaml").is_file() else "[yellow]none here[/]",
        "run trace in the project's folder",
    )
    from flows import services

    for name, state in services.status(Path.cwd()).items():
        table.add_row(name, state, "")
    console.print(table)
    return not missing and writable


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
