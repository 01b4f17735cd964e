"""`trace doctor`: the optional packages of the tasks, where they are missing and where they are there."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flows import doctor

PACKAGES = {"math-verify": "'.[math]'", "datasets": "'.[hub]'", "bfcl-eval": "make functions"}


@pytest.mark.parametrize("missing", [True, False])
def test_optional_packages_of_the_tasks_are_shown_and_how_to_get_them(tmp_path, monkeypatch, missing):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "_version", lambda package: None if missing and package in PACKAGES else "1.2.3")
    console = Console(file=io.StringIO(), width=300)
    assert doctor.examine(console)  # none of them is needed by the embedded default
    lines = {line.split()[0]: line for line in console.file.getvalue().splitlines() if line.strip()}
    for package, command in PACKAGES.items():
        assert ("missing" in lines[package]) == missing
        assert ("1.2.3" in lines[package]) != missing
        assert (command in lines[package]) == missing
