"""Hostile code against both Python tools: none escapes, hangs, or delays its neighbours."""

from __future__ import annotations

import importlib.util
import threading
import time

import pytest

from components.environments.math.python_tool import ConfinedPython, PythonTool, SandboxedPython, echo_last
from components.tree.schema import Status
from components.workers.confine import available

pytest.importorskip("pydantic_monty")
pytest.importorskip("sympy")

SECRET = "the-gold-answer-is-42"
LIMIT = 0.4


@pytest.fixture(scope="module")
def tools() -> dict[str, PythonTool]:
    made: dict[str, PythonTool] = {"sandboxed": SandboxedPython(LIMIT, count=2)}
    if available():
        made["confined"] = ConfinedPython(LIMIT, count=2)
    for tool in made.values():
        tool.run("1")  # starts its processes
    return made


@pytest.fixture(params=["sandboxed", "confined"])
def tool(request, tools) -> PythonTool:
    if request.param not in tools:
        pytest.skip("this system cannot confine a process")
    return tools[request.param]


HOSTILE = {
    # it never ends
    "loop": "while True: pass",
    "loop that catches": "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    "recursive generator": "def f():\n  yield from f()\nlist(f())",
    "huge power": "10**10**8",
    "huge shift": "1 << (1 << 40)",
    "factorial": "import math\nmath.factorial(10**8)",
    "big multiplication": "x = 3\nwhile True: x = x * x",
    "long sum": "sum(range(10**12))",
    "regular expression": "import re\nre.match(r'(a|a)*$', 'a' * 64 + 'b')",
    "sleep": "import time\ntime.sleep(10**6)",
    "endless import loop": "while True:\n  try:\n    import nothing_here\n  except ImportError: pass",
    # memory
    "memory list": "x = []\nwhile True: x.append('a' * 10**6)",
    "memory at once": "x = [0] * 10**12",
    "memory text": "'a' * 10**12",
    "memory doubling": "x = 'ab'\nwhile True: x += x",
    "memory format": "f'{1:>100000000000}'",
    "memory dict": "d = {}\ni = 0\nwhile True:\n  d[i] = str(i) * 1000\n  i += 1",
    # output
    "output flood": "while True: print('x' * 1000)",
    "output at once": "print('x' * 10**7)",
    "output value": "[0] * 10**6",
    "error flood": "raise ValueError('x' * 10**6)",
    # depth
    "recursion": "def f(): return f()\nf()",
    "recursion unbound": "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)",
    "nested source": "(" * 50_000 + ")" * 50_000,
    "nested list": "x = []\nfor i in range(10**5): x = [x]\nprint(x)",
    "minus signs": "-" * 50_000 + "1",
    "long code": "x = 1\n" * 50_000,
    "null byte": "x = 1\x00",
    "surrogate": "print('\ud800')",
    "unclosed": "print('",
    # files
    "read": "print(open({path!r}).read())",
    "read by os": "import os\nprint(os.read(os.open({path!r}, 0), 100))",
    "read by pathlib": "import pathlib\nprint(pathlib.Path({path!r}).read_text())",
    "read by io": "import io\nprint(io.FileIO({path!r}).read())",
    "write": "open({path!r}, 'w').write('mine')",
    "delete": "import os\nos.remove({path!r})",
    "rename": "import os\nos.rename({path!r}, {path!r} + 'x')",
    "make a file": "open({path!r} + '.new', 'w').close()",
    "make a folder": "import os\nos.mkdir({path!r} + '.new')",
    "link": "import os\nos.symlink({path!r}, {path!r} + '.new')",
    "mode": "import os\nos.chmod({path!r}, 0)",
    # processes and signals
    "fork bomb": "import os\nwhile True: os.fork()",
    "thread bomb": "import threading\nwhile True: threading.Thread(target=input).start()",
    "shell": "import os\nassert os.system('rm ' + {path!r}) == 0",
    "subprocess": "import subprocess\nprint(subprocess.run(['cat', {path!r}], capture_output=True).stdout)",
    "exec": "import os\nos.execv('/bin/rm', ['rm', {path!r}])",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)",
    "kill all": "import os\nos.kill(-1, 9)",
    "kill itself": "import os\nos.kill(os.getpid(), 9)",
    "stop itself": "import os\nos.kill(os.getpid(), 19)",
    "catch the alarm": "import signal\nsignal.signal(14, lambda *a: None)\nwhile True: pass",
    "block the alarm": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    "stop the alarm": "import signal\ntry: signal.setitimer(0, 0)\nexcept Exception: pass\nwhile True: pass",
    "lift the limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "multiprocessing": "import multiprocessing as m\nm.Process(target=print).start()",
    # network
    "socket": "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)",
    "http": "import urllib.request\nprint(urllib.request.urlopen('http://127.0.0.1').read())",
    "socket by ctypes": "import ctypes\nassert ctypes.CDLL(None).socket(2, 1, 0) >= 0",
    # walks to whatever is not given
    "subclasses": "def sub(c, name): return [s for s in c.__subclasses__() if s.__name__ == name][0]\n"
    "print(sub(sub(sub(().__class__.__mro__[1], '_IOBase'), '_RawIOBase'), 'FileIO')({path!r}).read())",
    "builtins": "print.__self__.__dict__['open']({path!r}).read()",
    "import function": "print(__import__('os').popen('cat ' + {path!r}).read())",
    "eval": "eval(\"__import__('os').listdir('/')\")",
    "globals": "(lambda: 0).__globals__['__builtins__'].open({path!r})",
    "environment": "import os\nprint(os.environ['A_SECRET'])",
    "frames": "import sys\nf = sys._getframe()\nwhile f:\n"
    "  print([v for k, v in f.f_locals.items() if k in ('task', 'reply')])\n  f = f.f_back",
    "crash": "import ctypes\nctypes.string_at(0)",
    "code object": "exec((lambda: 0).__code__.replace(co_code=b'\\xff' * 100))",
    "forged reply": "import os\nfor fd in range(64):\n  try: os.write(fd, b'\\x00\\x00\\x00\\x04true' * 9)\n"
    "  except OSError: pass\n1 / 0",
    "half a reply": "import os\nfor fd in range(64):\n  try: os.write(fd, b'\\x7f\\xff\\xff\\xff')\n"
    "  except OSError: pass\nwhile True: pass",
    "close all": "import os\nfor fd in range(64):\n  try: os.close(fd)\n  except OSError: pass\n1 / 0",
    "leave": "import os\nos._exit(0)",
}
HARMLESS = {"regular expression", "sleep", "nested list", "frames"}  # these may end well, having done nothing


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_neither_escapes_nor_hangs(tool, name, tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET", SECRET)
    file = tmp_path / "secret"
    file.write_text(SECRET)
    for _ in range(2):
        tool.run(f"x = '{SECRET}'")  # what another rollout ran before, in either process
    code = HOSTILE[name].replace("{path!r}", repr(str(file)))
    start = time.perf_counter()
    result = tool.run(code)
    assert time.perf_counter() - start < 2 * LIMIT + 1.0
    assert result.status != Status.OK or name in HARMLESS
    assert SECRET not in result.output
    assert len(result.output) < 15_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]
    assert (file.read_text(), file.stat().st_mode & 0o777 != 0) == (SECRET, True)
    assert tool.run("print(6 * 7)").output == "42\n"


@pytest.mark.parametrize("name", ["loop", "huge power", "memory list", "output flood", "fork bomb", "half a reply"])
def test_neighbours_of_hostile_code_are_not_delayed(tool, name):
    bad = threading.Thread(target=tool.run, args=(HOSTILE[name],))
    bad.start()
    slowest = 0.0
    while bad.is_alive():
        start = time.perf_counter()
        assert tool.run("print(1)").output == "1\n"
        slowest = max(slowest, time.perf_counter() - start)
    bad.join()
    assert slowest < 1.0


def test_what_ends_late_is_a_timeout_and_what_raises_an_error(tool):
    assert tool.run("while True: pass").status == Status.TIMEOUT
    result = tool.run("print('before')\n1 / 0")
    assert result.status == Status.ERROR
    assert result.output.startswith("before\n")
    assert "ZeroDivisionError" in result.output


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("1 + 1", "2\n"),
        ("x = 3\nx * x", "9\n"),
        ("print(5)", "5\n"),
        ("x = 5  # five\nx  # it", "5\n"),
        ("x = 1 + \\\n2", ""),
        ("for i in range(3):\n    print(i)", "0\n1\n2\n"),
        ("None", ""),
        ("'a\\n'\n", "'a\\n'\n"),
        ("", ""),
        ("s = '''\n1'''", ""),
        ("max(\n1,\n2)", ""),
    ],
)
def test_the_last_line_is_printed_where_it_has_a_value(tool, code, output):
    assert (tool.run(code).output, tool.run(code).status) == (output, Status.OK)


def test_a_run_sees_nothing_of_earlier_ones(tool):
    tool.run("x = 1\nimport math\nmath.pi = 3")
    assert tool.run("x").status == Status.ERROR
    assert tool.run("import math\nmath.pi").output == "3.141592653589793\n"


def test_a_run_repeats_itself(tool):
    code = "import random\nprint(random.random(), [w for w in {'a', 'b', 'c'}])"
    if isinstance(tool, ConfinedPython):
        code = "import random\nrandom.seed(0)\n" + code
    assert len({tool.run(code).output for _ in range(3)}) == 1


def test_code_that_is_too_long_is_not_run(tool):
    result = tool.run("#" * 200_000)
    assert result.status == Status.ERROR
    assert "200000 characters" in result.output


def test_the_confined_tool_has_sympy_and_numpy(tools):
    if "confined" not in tools:
        pytest.skip("this system cannot confine a process")
    for code, output in {
        "from sympy import *\nx = symbols('x')\nsolve(x**2 - 2, x)": "[-sqrt(2), sqrt(2)]\n",
        "from sympy import *\nx = symbols('x')\nsimplify(sin(x)**2 + cos(x)**2)": "1\n",
        "from sympy import *\nx = symbols('x')\nnsolve(cos(x) - x, x, 1)": "0.739085133215161\n",
        "from sympy import *\nlambdify(Symbol('x'), Symbol('x')**2)(3)": "9\n",
        "from sympy.ntheory.modular import crt\ncrt([3, 5], [2, 3])": "(8, 15)\n",
        "import numpy as np\nint(np.arange(5).sum())": "10\n",
        "from fractions import Fraction\nFraction(1, 3) + 1": "Fraction(4, 3)\n",
    }.items():
        assert tools["confined"].run(code).output == output


def test_echo_leaves_code_alone_that_it_cannot_read():
    for code in ("", "x = (\n1\n)", "  1", "def f():\n    1", "(" * 900, "x = 1 + \\\n2"):
        assert echo_last(code) == code


def test_without_its_package_a_tool_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Exception, match="install them with"):
        SandboxedPython()
