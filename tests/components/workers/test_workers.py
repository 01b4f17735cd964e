"""Workers that hang, die or fail are statuses; none delays its neighbours, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from components.tree.schema import Status
from components.workers.pool import PerProcess, Workers


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    """Whether processes end within some time."""
    for _ in range(int(seconds / 0.05)):
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            return True
        time.sleep(0.05)
    return False


def family(workers: Workers) -> list[int]:
    """The processes of this pool; others of this program live on for other tests."""
    helpers = [psutil.Process(helper.pid) for helper in workers._helpers]
    return [process.pid for helper in helpers for process in (helper, *helper.children(recursive=True))]


def test_a_value_goes_there_and_back():
    with Workers("json:dumps") as workers:
        reply = workers.run({"a": [1, None, "\ud800 木 \x00"]})
        assert (reply.status, reply.value) == (Status.OK, '{"a": [1, null, "\\ud800 \\u6728 \\u0000"]}')


def test_an_exception_is_an_error_with_its_text():
    with Workers("math:sqrt") as workers:
        reply = workers.run(-1)
        assert reply.status == Status.ERROR
        assert reply.value == "ValueError: math domain error"
        assert workers.run(4).value == 2.0


def test_eight_tasks_that_never_end_take_their_time_limit_and_no_more():
    with Workers("time:sleep", count=4, timeout=0.5) as workers:
        workers.map([0] * 4)
        start = time.perf_counter()
        assert [reply.status for reply in workers.map([60] * 8)] == [Status.TIMEOUT] * 8
        assert time.perf_counter() - start < 3.0


def test_a_task_that_holds_the_interpreter_is_killed():
    with Workers("math:factorial", timeout=0.5) as workers:
        workers.run(3)
        start = time.perf_counter()
        assert workers.run(10**8).status == Status.TIMEOUT
        assert workers.run(4).value == 24
        assert time.perf_counter() - start < 1.5


def test_cpu_time_is_bounded_apart_from_the_clock():
    with Workers("math:factorial", timeout=60.0, cpu=0.3) as workers:
        assert workers.run(10**8).value == "stopped after 0.3 s of CPU time"
    with Workers("time:sleep", timeout=0.6, cpu=0.3) as workers:
        assert workers.run(0.4).status == Status.OK
        assert workers.run(60).value == "stopped after 0.6 s"


def test_a_process_that_dies_is_an_error_and_is_replaced():
    with Workers("os:_exit") as workers:
        assert [workers.run(code).value for code in (3, 4)] == [f"the process died ({n})" for n in (3, 4)]


def test_memory_is_bounded():
    with Workers("builtins:bytearray", memory=1 << 28) as workers:
        assert workers.run(1 << 30).value.startswith("MemoryError")


def test_a_reply_that_is_too_long_is_an_error():
    with Workers("components.workers.pool:Reply") as workers:
        assert workers.run(1).status == Status.ERROR
    with Workers("textwrap:dedent", timeout=5) as workers:
        assert workers.run("x" * (1 << 21)).status == Status.ERROR
        assert workers.run("x").value == "x"
        assert workers.run("x" * (1 << 25)).status == Status.ERROR


def test_a_slow_task_does_not_delay_its_neighbours():
    with Workers("time:sleep", count=2, timeout=3.0) as workers:
        workers.map([0, 0])
        slow = threading.Thread(target=workers.run, args=(60,))
        slow.start()
        start = time.perf_counter()
        assert all(workers.run(0.001).status == Status.OK for _ in range(100))
        assert time.perf_counter() - start < 1.5
        slow.join()


def test_many_threads_share_one_worker_and_get_their_own_replies():
    with Workers("builtins:str") as workers:
        found: dict[int, str] = {}
        threads = [threading.Thread(target=lambda i=i: found.update({i: workers.run(i).value})) for i in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {i: str(i) for i in range(50)}


def test_a_lost_helper_is_an_error_and_the_next_task_runs():
    with Workers("builtins:str", timeout=1.0) as workers:
        assert workers.run(1).value == "1"
        for pid in family(workers):
            os.kill(pid, signal.SIGKILL)
        reply = workers.run(2)
        assert reply.status == Status.ERROR
        assert "lost" in reply.value
        assert workers.run(3).value == "3"


def test_a_helper_that_stands_still_is_an_error_and_is_replaced():
    with Workers("builtins:str", timeout=0.2) as workers:
        workers.run(1)
        stopped = family(workers)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        start = time.perf_counter()
        assert workers.run(2).status == Status.ERROR
        assert time.perf_counter() - start < 4.0
        assert workers.run(3).value == "3"
    assert gone(stopped)


def test_a_function_that_is_not_there_is_told_each_time():
    with Workers("math:nothing") as workers:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="nothing"):
                workers.run(1)


def test_closing_kills_busy_workers_too_and_leaves_nobody():
    workers = Workers("time:sleep", count=2, timeout=60.0)
    workers.map([0, 0])
    busy = threading.Thread(target=workers.run, args=(60,))
    busy.start()
    time.sleep(0.2)
    pids = family(workers)
    assert len(pids) >= 4
    workers.close()
    busy.join(5)
    assert not busy.is_alive()
    assert gone(pids)
    with pytest.raises(RuntimeError, match="closed"):
        workers.run(0)


@pytest.mark.parametrize("task", [0, 60])
def test_nobody_outlives_a_killed_program(task):
    code = (
        "from components.workers.pool import Workers; import sys\n"
        "workers = Workers('time:sleep', timeout=1.0); workers.run(0)\n"
        f"print('ready', flush=True); workers.run({task}) if {task} else sys.stdin.read()"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.readline()
    time.sleep(0.2)
    pids = [child.pid for child in psutil.Process(program.pid).children(recursive=True)]
    assert pids
    program.kill()
    program.communicate()
    assert gone(pids)


def test_a_fork_makes_its_own():
    made = PerProcess(os.getpid)
    assert made.get() == made.get() == os.getpid()
    if (child := os.fork()) == 0:
        os._exit(0 if made.get() == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_secrets_of_the_environment_stay_here(monkeypatch):
    monkeypatch.setenv("A_SECRET", "hush")
    with Workers("os:getenv") as workers:
        assert workers.run("A_SECRET").value is None


GRADERS = """
import os, signal, subprocess, time
from pathlib import Path

def stubborn(how):
    pids = [os.getpid()]
    signal.setitimer(signal.ITIMER_PROF, 0)
    match how:
        case "answers":
            return os.getpid()
        case "cancels":
            signal.alarm(0)
        case "ignores":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        case "blocks":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        case "catches":
            signal.signal(signal.SIGALRM, lambda *_: None)
        case "sets its own":
            signal.alarm(100)
        case "waits for another":
            pids.append(subprocess.Popen(["sleep", "60"]).pid)
    Path(__file__).with_name("some").write_text(" ".join(map(str, pids)))
    Path(__file__).with_name("some").rename(Path(__file__).with_name("pids"))
    while True:
        time.sleep(60)
"""


@pytest.fixture
def left(tmp_path, monkeypatch):
    """The processes of the last task of the module `graders`, made here, once it runs."""
    (tmp_path / "graders.py").write_text(GRADERS)
    monkeypatch.syspath_prepend(tmp_path)

    def pids() -> list[int]:
        while not (tmp_path / "pids").is_file():
            time.sleep(0.01)
        return [int(pid) for pid in (tmp_path / "pids").read_text().split()]

    return pids


@pytest.mark.parametrize("how", ["cancels", "ignores", "blocks", "catches", "sets its own", "waits for another"])
def test_a_task_that_undoes_its_alarms_is_a_timeout_and_leaves_nobody(left, how):
    with Workers("graders:stubborn", timeout=0.3) as workers:
        assert workers.run("answers").status == Status.OK
        reply = workers.run(how)
        assert (reply.status, reply.value) == (Status.TIMEOUT, "stopped after 0.3 s")
        assert gone(left())
        assert workers.run("answers").status == Status.OK


def test_a_server_that_dies_takes_its_busy_child_with_it(left):
    with Workers("graders:stubborn", timeout=60.0) as workers:
        workers.run("answers")
        task = threading.Thread(target=workers.run, args=("cancels",))
        task.start()
        (child,) = left()
        psutil.Process(child).parent().kill()
        task.join()
        assert gone([child])
