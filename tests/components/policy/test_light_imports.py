"""Modules that others import for names, types and parameters bring no model library along."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIGHT = ["base", "checkpoint", "engines", "engines.base", "engines.transformers", "engines.vllm", "engines.vllm.engine",
         "engines.vllm.server", "faults", "loop", "rollout", "trainers", "trainers.base", "trainers.deepspeed",
         "trainers.torch"]  # fmt: skip


@pytest.mark.parametrize(("modules", "heavy"), [(LIGHT, "torch transformers"), (["renderer"], "torch")])
def test_importing_light_modules_loads_no_model_library(modules, heavy):
    """The renderer needs tokenizers alone."""
    imports = "; ".join(f"import components.policy.{module}" for module in modules)
    code = f"import sys; {imports}; print([name for name in {heavy.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
