"""Takes from this process, for good, every right but to compute: no files, no network, no processes, no signals.

A seccomp filter (Linux) answers every system call that is not in a short list with EPERM; see seccomp(2). The list
holds what a running interpreter needs for memory, time, and the descriptors that are open already. Since signal
handlers and timers are not in it, a pending alarm can be neither caught nor blocked nor stopped; nor can one sleep.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from contextlib import suppress

# Number of each allowed system call, from the kernel's asm/unistd_64.h (x86-64) and asm-generic/unistd.h (arm64).
ALLOWED = {
    "x86_64": {
        "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
        "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25, "madvise": 28, "getpid": 39, "exit": 60,
        "sigaltstack": 131, "gettid": 186, "futex": 202, "restart_syscall": 219, "clock_gettime": 228,
        "exit_group": 231, "getrandom": 318,
    },
    "aarch64": {
        "read": 63, "write": 64, "close": 57, "fstat": 80, "lseek": 62, "mmap": 222, "mprotect": 226, "munmap": 215,
        "brk": 214, "rt_sigreturn": 139, "sched_yield": 124, "mremap": 216, "madvise": 233, 
        "getpid": 172, "exit": 93, "sigaltstack": 132, "gettid": 178, "futex": 98, "restart_syscall": 128,
        "clock_gettime": 113, "exit_group": 94, "getrandom": 278,
    },
}  # fmt: skip
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_* of linux/audit.h
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # SECCOMP_RET_ALLOW, _ERRNO | EPERM, _KILL_PROCESS
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
_NOBODY = 65534
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 1, 22, 38, 2


def available() -> bool:
    """Whether this machine can confine a process."""
    return sys.platform == "linux" and platform.machine() in ALLOWED


def confine() -> None:
    """Confines this process, irrevocably; call it with one thread. What root started becomes nobody's first.

    Raises:
        OSError: if the kernel refuses.
    """
    _leave_root()
    die_with_parent()  # which another user's name undoes
    numbers = ALLOWED[platform.machine()].values()
    program = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 1, 0, _ARCHITECTURE[platform.machine()]), (_RETURN, 0, 0, _KILL)]
    program.append((_LOAD, 0, 0, 0))
    program += [(_JUMP_IF_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    program += [(_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "this kernel does not let a process be confined by seccomp")


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _leave_root() -> None:
    """Gives up root and its groups where this process has them, and where the system lets it (a container may not)."""
    if os.geteuid() == 0:
        with suppress(OSError):
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
