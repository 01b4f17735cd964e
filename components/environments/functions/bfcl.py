"""What is used of the package `bfcl-eval`: data, function documents, simulated APIs and checkers.

The package's own executor keeps its API objects in module globals and runs calls by `eval`; neither is used here. Its
dependencies (an old numpy, the vendors' clients) are not needed by the parts that are, so it is installed without them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from decimal import localcontext
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from components.environments.parsing import Call
from components.errors import UserError

RELEASE = "bfcl-eval==2026.3.23"
MODEL = "policy"  # the model's name in the syntax-tree checker, which has it for the names' dots alone
MAX_ENTRIES, MAX_LEVELS = 20_000, 100  # of a simulated file system

Apis = dict[str, Any]  # class name to object


class TooLarge(ValueError):
    """A simulated file system grew beyond any use, for instance since a folder was copied into itself."""


def read_data(name: str) -> list[dict[str, Any]]:
    """Rows of a file in the package's data folder; each line is a JSON object.

    Raises:
        UserError: if the package is not installed, or the file is missing or damaged.
    """
    path = _root() / "data" / name
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except OSError:
        raise UserError(f"{path} is missing; install {RELEASE}") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); install {RELEASE} again") from None


@cache
def functions_of(name: str) -> tuple[dict[str, Any], ...]:
    """Documents of an API class's functions; shared, so not to be changed."""
    return tuple(read_data(f"multi_turn_func_doc/{_backend().MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]}"))


def load_apis(classes: Sequence[str], config: Mapping[str, Any], long_context: bool) -> Apis:
    """The API objects at the beginning of a scenario."""
    apis: Apis = {}
    for name in classes:
        apis[name] = getattr(importlib.import_module(_backend().CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in _backend().STATELESS_CLASSES:
            apis[name]._load_scenario(deepcopy(config.get(name, {})), long_context=long_context)
    return deepcopy(apis)  # long-context scenarios hold objects of the package's module, which calls would change


def owner(call: Call, classes: Sequence[str]) -> str | None:
    """The class whose function is called."""
    return next((name for name in classes if any(f["name"] == call.name for f in functions_of(name))), None)


def execute(api: Any, call: Call) -> str:
    """Runs a documented function, changes the object, and returns the result as the leaderboard writes it.

    Raises:
        TooLarge: if the object is of no use any more. What else goes wrong is told in the result.
    """
    mpmath = importlib.import_module("mpmath")  # outside the try: what is not installed is not the policy's fault
    try:
        _refuse_costly(call)
        with localcontext(), mpmath.workdps(mpmath.mp.dps):  # some functions set the precision of the whole process
            result = getattr(api, call.name)(**deepcopy(call.arguments))  # the object may keep what it is given
        text = _text(result)
    except Exception as error:  # whatever a function raises at what the policy wrote is the policy's to see
        text = f"Error during execution: {error}"
    if call.name in ("cp", "mv", "mkdir"):
        _check_size(api)
    return text


def run_calls(
    apis: Mapping[str, Any], calls: Sequence[Call], known: Sequence[str]
) -> tuple[Mapping[str, Any], list[str]]:
    """Runs the calls on copies of the objects that they concern.

    Args:
        apis: API objects by class; untouched.
        calls: What to run, in order.
        known: Names of the functions that exist at this point.

    Returns:
        The objects afterwards, and what each call returned: the result, or the text of an error.

    Raises:
        TooLarge: if an object is of no use any more.
    """
    owners = [owner(call, list(apis)) if call.name in known else None for call in calls]
    after = {name: deepcopy(api) if name in owners else api for name, api in apis.items()}
    results = [
        f"Error during execution: there is no function {call.name[:80]!r}"
        if name is None
        else execute(after[name], call)
        for name, call in zip(owners, calls, strict=True)
    ]
    return after, results


def offered(task: Mapping[str, Any], turn: int) -> list[Mapping[str, Any]]:
    """Documents of the functions that exist in a turn of the user, counted from 0."""
    held_back = {name for start, names in task["held_back"].items() if int(start) > turn for name in names}
    documents = [*task["functions"], *(f for name in task["classes"] for f in functions_of(name))]
    return [document for document in documents if document["name"] not in held_back]


@cache
def multi_turn_checker() -> ModuleType:
    return importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")


@cache
def ast_checker() -> ModuleType:
    """The syntax-tree checker: a copy of our own, made while a stub stands for the module that imports every vendor."""
    _root()
    name = "bfcl_eval.constants.model_config"
    spec = importlib.util.find_spec("bfcl_eval.eval_checker.ast_eval.ast_checker")
    if spec is None or spec.loader is None:
        raise UserError(f"the package bfcl-eval has no syntax-tree checker; install {RELEASE}")
    module, stub, real = importlib.util.module_from_spec(spec), ModuleType(name), sys.modules.get(name)
    stub.__dict__["MODEL_CONFIG_MAPPING"] = {MODEL: SimpleNamespace(underscore_to_dot=False)}
    sys.modules[name] = stub
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
        if real is not None:
            sys.modules[name] = real
    return module


def additional_functions(functions: Sequence[Mapping[str, Any]]) -> str:
    """What the user says when functions are added: the leaderboard's text."""
    prompts = importlib.import_module("bfcl_eval.constants.default_prompts")
    text = str(prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING)
    return text.replace("{functions}", "\n".join(json.dumps(function) for function in functions))


def tool_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function's document as chat templates take tools: its types in the words of JSON schema."""
    types = importlib.import_module("bfcl_eval.constants.type_mappings").GORILLA_TO_OPENAPI

    def schema(value: Any) -> Any:
        if isinstance(value, list):
            return [schema(item) for item in value]
        if not isinstance(value, dict):
            return value
        out = {key: schema(item) for key, item in value.items()}
        if isinstance(kind := value.get("type"), str):
            out["type"] = types.get(kind, "string")
        return out

    return {"type": "function", "function": schema(function)}


@cache
def _root() -> Path:
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise UserError(f"the task functions needs {RELEASE}; install it with: uv pip install --no-deps {RELEASE}")
    return Path(spec.origin).parent


@cache
def _backend() -> ModuleType:
    _root()
    return importlib.import_module("bfcl_eval.constants.executable_backend_config")


def _text(result: Any) -> str:
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def _refuse_costly(call: Call) -> None:
    """The few functions whose time grows with a number rather than with the length of what was written."""
    arguments = call.arguments
    match call.name:
        case "power":
            base, exponent = arguments.get("base"), arguments.get("exponent")
            if isinstance(base, int) and isinstance(exponent, int) and abs(exponent) * base.bit_length() > 100_000:
                raise ValueError("the result is too large")
        case "logarithm" | "square_root" | "round_number":
            for name in ("precision", "decimal_places"):
                try:
                    size = abs(float(arguments.get(name, 0)))
                except (TypeError, ValueError):
                    continue
                except OverflowError:
                    size = float("inf")
                if not size <= 10_000:
                    raise ValueError(f"{name} is too large")


def _check_size(api: Any) -> None:
    """Counts entries as often as a walk would meet them, below the root and below every folder on the way to it."""
    starts, folder = [api.root], api._current_dir
    while folder is not None and len(starts) <= MAX_LEVELS:
        starts.append(folder)
        folder = folder.parent
    waiting, met = [(start, 0) for start in starts], 0
    while waiting:
        item, level = waiting.pop()
        met += 1
        if met > MAX_ENTRIES or level > MAX_LEVELS or len(starts) > MAX_LEVELS:
            raise TooLarge("the file system is too large or too deep")
        waiting += [(child, level + 1) for child in getattr(item, "contents", {}).values()]
