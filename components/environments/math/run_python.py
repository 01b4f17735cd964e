"""Runs model-written code in full CPython; the process has nothing but what is imported here.

A confined process opens no files, so it can import only what is imported already: the list below, which holds whatever
sympy imports only when it is first needed.
"""

from __future__ import annotations

import builtins
import importlib
import io
import linecache
import pkgutil
import sys
import traceback
from typing import Any

NAME = "<code>"
OUTPUT_CHARS = 10_000
ERROR_CHARS = 2_000  # of a traceback, the end
MODULES = (  # noqa: SIM905
    "array bisect calendar cmath collections collections.abc contextlib copy dataclasses datetime decimal enum "
    "fractions functools heapq itertools json math numbers operator random re statistics string textwrap time typing "
    "mpmath numpy numpy.fft numpy.linalg numpy.polynomial numpy.random sympy sympy.abc sympy.stats.compound_rv "
    "sympy.codegen.abstract_nodes sympy.codegen.cnodes sympy.codegen.pynodes sympy.parsing.sympy_parser "
    "sympy.physics.matrices sympy.physics.units.util sympy.printing.c sympy.vector"
).split()
SYMPY_PARTS = (  # noqa: SIM905
    "assumptions calculus combinatorics concrete discrete functions geometry integrals logic matrices ntheory polys "
    "series sets simplify solvers tensor"
).split()


class OutputLimit(Exception):
    """The code wrote more than is kept."""


class _Output(io.StringIO):
    def write(self, text: str) -> int:
        room = OUTPUT_CHARS - self.tell()
        if len(text) > room:
            super().write(text[:room])
            raise OutputLimit(f"more than {OUTPUT_CHARS} characters of output")
        return super().write(text)


def _import_all() -> None:
    for name in MODULES:
        importlib.import_module(name)
    for part in SYMPY_PARTS:
        package = importlib.import_module(f"sympy.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".tests" not in module.name and ".benchmarks" not in module.name:
                importlib.import_module(module.name)


_import_all()


def execute(code: str) -> dict[str, Any]:
    """Runs code.

    Returns:
        ``output``, and ``failed``: whether an exception ended it, which the output then ends with.
    """
    output = _Output()
    linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)
    streams, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), output, output
    try:
        failed = not _run(code, output)
    finally:
        sys.stdout, sys.stderr = streams
    return {"output": io.StringIO.getvalue(output), "failed": failed}


def _run(code: str, output: _Output) -> bool:
    try:
        exec(compile(code, NAME, "exec"), {"__name__": "__main__", "__builtins__": builtins})
    except SystemExit:
        return True
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == NAME][-3:]
        where = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
        text = "".join([*where, *traceback.format_exception_only(error)])
        io.StringIO.write(output, text[-ERROR_CHARS:])
        return False
    return True
