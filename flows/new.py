"""`trace new`: an environment, an arm or a predictor of one's own, as a runnable example with its test."""

from __future__ import annotations

import keyword
import re
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from components.errors import UserError

console = Console()


class Kind(StrEnum):
    ENVIRONMENT = "environment"
    ARM = "arm"
    PREDICTOR = "predictor"


def new(
    kind: Annotated[Kind, typer.Argument(help="What to write.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: small letters, digits and underscores.")],
) -> None:
    """Write an example of your own environment, arm or predictor, its test, and a parameters file that uses it."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,49}", name) or keyword.iskeyword(name):
        raise UserError(f"NAME={name}: use small letters, digits and underscores, beginning with a letter")
    key = {Kind.ENVIRONMENT: "environment: {name: %s}", Kind.ARM: "allocation: {arm: %s}"}.get(
        kind, "predictor: {name: %s}"
    )
    files = {
        f"{name}.py": _filled(f"{kind}.py", name),
        f"test_{name}.py": _filled(f"test_{kind}.py", name),
        "params.yaml": f"# The embedded default, with what {name}.py brings.\nplugins: [{name}]\n{key % name}\n",
    }
    if there := [file for file in (f"{name}.py", f"test_{name}.py") if Path(file).exists()]:
        raise UserError(f"{there[0]} exists already; choose another name")
    if Path("params.yaml").exists():
        advice = f"params.yaml is here already; add to it: plugins: [{name}] and {key % name}"
        console.print(advice, highlight=False, soft_wrap=True, markup=False)
        del files["params.yaml"]
    for file, text in files.items():
        Path(file).write_text(text, encoding="utf-8")
    console.print(f"Written: {', '.join(files)}", highlight=False, soft_wrap=True)
    console.print(f"Next: python -m pytest test_{name}.py; trace train; trace report latest", highlight=False)


def _filled(template: str, name: str) -> str:
    """A template under its new name; the class is named in capitals."""
    text = (resources.files("flows.templates") / template).read_text(encoding="utf-8")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    return re.sub(r"\bexample\b", name, text).replace("Example", class_name)
