"""GPUs: memory and peak, from their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from components.errors import UserError

# (memory in bytes, dense bfloat16 operations a second). NVIDIA data sheets, SXM forms: A100 80GB (2021), H100 and H200
# Tensor Core GPU. The sheets of the last two give 1979 TFLOPS with sparsity, twice the dense number.
GPUS = {"A100": (80e9, 312e12), "H100": (80e9, 989e12), "H200": (141e9, 989e12)}
CPU_PEAK = 86e9  # fp32 operations a second of one AVX2 core at 3 GHz: what a matrix product was seen to reach


@dataclass(frozen=True)
class Cluster:
    """What is there to run on.

    Attributes:
        name: Of one device.
        devices: How many there are; 1 for a CPU.
        memory: Bytes of one.
        peak: Floating-point operations a second of one.
    """

    name: str
    devices: int
    memory: float
    peak: float

    @property
    def is_cpu(self) -> bool:
        return self.name == "CPU"


def make_cluster(gpus: int, name: str, memory_gb: float | None, threads: int = 1) -> Cluster:
    """`gpus` GPUs of a kind, or this machine's CPU where there are none.

    Args:
        gpus: Number of them.
        name: One of `GPUS`.
        memory_gb: Memory of one in 1e9 bytes, where it is not as in the data sheet.
        threads: Threads of the CPU.

    Raises:
        UserError: if the kind is not known.
    """
    given = None if memory_gb is None else memory_gb * 1e9
    if gpus == 0:
        return Cluster("CPU", 1, given or float(psutil.virtual_memory().total), threads * CPU_PEAK)
    if name not in GPUS:
        raise UserError(f"--gpu {name}: its peak is known only of {', '.join(GPUS)}")
    memory, peak = GPUS[name]
    return Cluster(name, gpus, given or memory, peak)
