"""Where the rollouts go: the planners of TRACE and the rival rules, by the names used in params.yaml."""

from components.allocation.base import Allocator, Anchors, Belief, Seen, Shape, plan_by_tree
from components.allocation.entropy_tree import EntropyTree
from components.allocation.filtered import GrpoFilter, PclFilter
from components.allocation.grpo import Grpo
from components.allocation.infotree import InfoTree
from components.allocation.knapsack import Knapsack
from components.allocation.mopps import Mopps
from components.allocation.pcl import Pcl
from components.allocation.react import React
from components.allocation.reinforce_ada import ReinforceAda
from components.allocation.trace import Trace, TraceFlat
from components.allocation.treepo import TracePrefix, TraceRoot, TreePO
from components.allocation.unified import TraceUnified
from components.allocation.vip import Vip

ARMS: dict[str, Allocator] = {
    "react": React(),
    "grpo": Grpo(),
    "grpo-filter": GrpoFilter(),
    "pcl": Pcl(),
    "pcl-filter": PclFilter(),
    "treepo": TreePO(),
    "entropy-tree": EntropyTree(),
    "trace-root": TraceRoot(),
    "trace-prefix": TracePrefix(),
    "trace": Trace(),
    "trace-flat": TraceFlat(),
    "trace-unified": TraceUnified(),
    "trace-unified-tokens": TraceUnified(budget="tokens"),
    "mopps": Mopps(),
    "knapsack": Knapsack(),
    "reinforce-ada": ReinforceAda(),
    "vip": Vip(),
    "infotree": InfoTree(),
}

__all__ = ["ARMS", "Allocator", "Anchors", "Belief", "Seen", "Shape", "plan_by_tree"]
