"""Environments: state in, state out; by the names used in params.yaml, a package each.

Each of the three settings of the paper has a built-in task, which the tiny policy learns, and one for real models.

| built-in | for real models |
| --- | --- |
| `multihop`: look-ups in a knowledge base | `search`: questions answered by searching a corpus |
| `calculator`: chained operations | `math`: problems with a Python tool |
| `devices`: settings of a house that rewires itself | `functions`: calls of stateful APIs (BFCL v4) |
"""

from components.environments.base import Environment
from components.registry import Registry

ENVIRONMENTS: Registry[Environment] = Registry("environment.name", Environment, __name__, "trace.environments")
