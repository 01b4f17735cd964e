"""The arms, by the names used in params.yaml: one module each."""

from components.allocation.arm import Arm
from components.registry import Registry

ARMS: Registry[Arm] = Registry("allocation.arm", Arm, __name__, "trace.arms")
