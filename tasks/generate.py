"""Generate: the bare rollouts that the root plan granted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from components.errors import UserError
from components.policy import make_sampler
from components.policy.rollout import Sampler, Start, derive_seed
from components.storage import read_parquet
from components.tree.forest import tree_by_tree
from components.tree.schema import Node, Origin
from tasks.allocate_roots import ROOTS_SCHEMA
from tasks.inputs import prompts, write_forest
from tasks.stage import WHOLE, Context, Shard, stage


@stage("generate", output="generated.parquet")
def generate(context: Context, policy: Path, roots: Path, shard: Shard = WHOLE) -> dict[str, float]:
    """Writes one tree per active prompt of the shard, with its factual rollouts still unverified."""
    index, count = shard
    sample = make_sampler(context.params, policy, context.iteration)
    active = read_parquet(roots, ROOTS_SCHEMA).filter(pc.field("allocated") > 0)
    plan = [(row, row["allocated"]) for row in active.to_pylist()]
    mine = [plan[row] for row in np.array_split(np.arange(len(plan)), count)[index].tolist()]
    nodes: list[Node] = []
    new, rollouts = grow_roots(context, sample, nodes, mine)
    write_forest(context.output, tree_by_tree(nodes))
    return {"rollouts": float(rollouts), "tokens": float(sum(sum(n.is_action) for n in new))} | sample.usage()


def grow_roots(
    context: Context, sample: Sampler, nodes: list[Node], plan: list[tuple[dict[str, object], int]]
) -> tuple[list[Node], int]:
    """Samples bare rollouts, and appends them and the roots of new trees to `nodes`.

    Args:
        context: The stage that pays.
        sample: Holds the policy.
        nodes: The forest so far.
        plan: Rows of `ROOTS_SCHEMA`, each with its number of further rollouts, at least 1.

    Returns:
        The sampled nodes and the number of rollouts.

    Raises:
        UserError: if a prompt leaves no room for a turn.
    """
    params = context.params
    train = prompts(params, "train")
    root_of = {n.prompt_id: n for n in nodes if n.parent_id < 0}
    starts: list[Start] = []
    for row, count in plan:
        prompt = train[str(row["prompt_id"])]
        ids = sample.renderer.prompt_ids(sample.environment.chat(prompt))
        if len(ids) >= params.engine.max_tokens:
            raise UserError(
                f"engine.max_tokens={params.engine.max_tokens} leaves no room after the {len(ids)} tokens of "
                f"prompt {prompt.prompt_id}"
            )
        root = root_of.get(prompt.prompt_id)
        if root is None:
            root = Node(
                tree_id=len(root_of),
                prompt_id=prompt.prompt_id,
                node_id=len(nodes),
                parent_id=-1,
                turn=0,
                origin=Origin.ROOT,
                token_ids=ids,
                is_action=[False] * len(ids),
                logprobs=[float("nan")] * len(ids),
                observation=prompt.question,
                v_hat=row["v_hat"],  # type: ignore[arg-type]
                concentration=row["concentration"],  # type: ignore[arg-type]
                rule=params.allocation.arm,
                policy_version=context.iteration,
            )
            root_of[prompt.prompt_id] = root
            nodes.append(root)
        state = sample.world(prompt)
        starts += [
            Start(
                prompt,
                root.tree_id,
                root.node_id,
                sibling,
                0,
                ids,
                state,
                derive_seed(params.run.seed, context.iteration, prompt.prompt_id, 0, sibling),
            )
            for sibling in range(root.allocated, root.allocated + count)
        ]
        root.allocated += count
    new = sample.sample(starts, len(nodes), context.counter(len(starts)))
    nodes += new
    return new, len(starts)
