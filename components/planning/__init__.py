"""What a run needs before a GPU is rented: memory, tokens, floating-point operations, hours, disk.

Arithmetic on the parameters and on a model's shape; needs no torch and no checkpoint. docs/plan.md compares it with
measurements.
"""

from components.planning.hardware import GPUS, Cluster, make_cluster
from components.planning.models import Model
from components.planning.stages import Plan, Stage, gigabytes, plan

__all__ = ["GPUS", "Cluster", "Model", "Plan", "Stage", "gigabytes", "make_cluster", "plan"]
