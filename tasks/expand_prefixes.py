"""Expand, stage 2: continuations from visited prefixes where they are likely to flip the outcome."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from components.allocation import ARMS
from components.environments import replay
from components.policy import make_sampler
from components.policy.rollout import Start, derive_seed
from components.predictor import make_predictor, prefixes_of
from components.tree.anchors import visited_anchors
from components.tree.forest import Forest
from tasks.inputs import prompts, read_forest, write_forest
from tasks.stage import Context, stage


@stage("expand prefixes", output="expanded.parquet")
def expand_prefixes(context: Context, policy: Path, predictor: Path | None, factual: Path) -> dict[str, float]:
    """Writes the forest with beliefs at its prefixes, the counts K granted there (Eq. 16), and the continuations.

    The continuations are not verified yet.
    """
    params = context.params
    arm = ARMS[params.allocation.arm]
    train = prompts(params, "train")
    forest = read_forest(factual)
    nodes = forest.nodes
    anchors = visited_anchors(forest)
    model = make_predictor(params, policy, predictor)
    anchors = anchors.with_belief(model.predict(prefixes_of(forest, anchors.node_A.tolist(), train)))
    bare = np.array([n.allocated for n in nodes if n.parent_id < 0], dtype=np.int64)
    rng = np.random.default_rng(derive_seed(params.run.seed, context.iteration, "prefixes"))
    counts = arm.plan_continuations(anchors, bare, params.allocation.shape, rng)

    sample = make_sampler(params, policy, context.iteration)
    starts: list[Start] = []
    for row, count, mean in zip(anchors.node_A.tolist(), counts.tolist(), anchors.belief.mean_A.tolist(), strict=True):
        node = nodes[row]
        node.v_hat = mean if node.v_hat is None else node.v_hat
        if not count:
            continue
        path, ids, prompt = forest.path(row), forest.prefix_ids(row), train[node.prompt_id]
        state = replay(sample.environment, prompt, [nodes[i].action or "" for i in path[1:]])
        first = 0
        if node.parent_id < 0:
            first = node.allocated  # extra root rollouts follow the bare ones, and are told apart from them by it
        else:
            node.allocated, node.rule = count, params.allocation.arm
        starts += [
            Start(
                prompt,
                node.tree_id,
                row,
                sibling,
                node.turn,
                ids,
                state,
                derive_seed(params.run.seed, context.iteration, prompt.prompt_id, row, sibling),
            )
            for sibling in range(first, first + count)
        ]
    new = sample.sample(starts, len(nodes), context.counter(len(starts)))
    write_forest(context.output, Forest(nodes + new))
    continuations = sum(s.turn > 0 for s in starts)
    return {
        "anchors": float(len(anchors)),
        "continuations": float(continuations),
        "extra_roots": float(len(starts) - continuations),
        "tokens": float(sum(sum(n.is_action) for n in new)),
    }
