"""The house: imports run one way and in no circle, light modules stay light, and what has a name has one home."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from components.allocation.arms import ARMS
from components.environments import ENVIRONMENTS
from components.policy.engines import ENGINES
from components.policy.trainers import TRAINERS
from components.predictor.models import PREDICTORS
from components.tree.advantages import ADVANTAGES

ROOT = Path(__file__).parents[1]
FILES = [path for folder in ("flows", "tasks", "components") for path in (ROOT / folder).rglob("*.py")]
REGISTRIES = (ENVIRONMENTS, ENGINES, ARMS, PREDICTORS, TRAINERS, ADVANTAGES)

# The files, and the words there, that are spelled as a registered name: defaults, and words that mean something else.
SPELLED_ALIKE = {
    "components/params/root.py": "every word: the embedded default",
    "flows/doctor.py": "every word: packages that may be installed",
    "components/policy/trainers/base.py": "treerpo: the default advantage",
    "flows/compare.py": "grpo: the default baseline",
    "flows/plan.py": "devices: GPUs",
    "components/planning/stages.py": "devices: GPUs",
    "components/policy/engines/vllm/__init__.py": "devices: GPUs",
    "components/policy/trainers/deepspeed/__init__.py": "devices: GPUs",
    "components/environments/multihop/__init__.py": "search: a word of the little language",
}
PROJECT = "trace"  # an arm, and the name of the logger, the flow and the experiment


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("flows", "tasks", "components", cache_dir=None)


def test_no_module_imports_itself_by_way_of_others(graph):
    """Every circle, as the modules that are on it; imports inside of functions, and those of types alone, count."""
    ours = sorted(graph.modules)
    index = {module: graph.find_modules_directly_imported_by(module) & set(ours) for module in ours}
    on_a_circle = [module for module in ours if _reaches_itself(module, index)]
    assert on_a_circle == []


def _reaches_itself(module: str, imports: dict[str, set[str]]) -> bool:
    seen: set[str] = set()
    waiting = list(imports[module])
    while waiting:
        other = waiting.pop()
        if other == module:
            return True
        if other not in seen:
            seen.add(other)
            waiting += imports[other]
    return False


def test_no_file_is_longer_than_a_reader_can_hold():
    assert {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 350} == {}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("components.params.load", "torch transformers prefect mlflow scipy.stats scipy.optimize matplotlib pandas"),
        ("components.simulation", "torch transformers prefect mlflow"),
        ("components.planning", "torch transformers prefect mlflow"),
        ("flows.cli", "torch transformers prefect mlflow scipy matplotlib pyarrow"),
        ("flows.train", "torch transformers mlflow scipy.stats matplotlib distributed"),
    ],
)
def test_imports_tell_the_weight(module, heavy):
    code = f"import sys, {module}; print([name for name in {heavy.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def homes() -> dict[str, set[str]]:
    """The files in which each registered name may stand: its module, or the folder that is its package."""
    found: dict[str, set[str]] = {}
    for registry in REGISTRIES:
        for name in registry:
            module = Path(*registry[name].__module__.split("."))
            package = (ROOT / module).is_dir()
            files = {p for p in FILES if p.relative_to(ROOT).is_relative_to(module)} if package else {}
            found.setdefault(name, set()).update(str(p.relative_to(ROOT)) for p in files or [(ROOT / f"{module}.py")])
    return found


def test_a_name_stands_in_its_home_alone():
    """No list, no branch and no special case elsewhere repeats the name of an arm, a task, an engine ..."""
    allowed, faults = homes(), []
    del allowed[PROJECT]
    for path in FILES:
        file = str(path.relative_to(ROOT))
        spelled_alike = SPELLED_ALIKE.get(file, "").partition(":")[0]
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in allowed
            if named and file not in allowed[node.value] and spelled_alike not in (node.value, "every word"):
                faults.append(f"{file}:{node.lineno}: {node.value!r}")
    assert faults == []
