"""Generate: the bare rollouts that the root plan granted."""

from __future__ import annotations

from pathlib import Path

from components.errors import UserError
from components.policy.rollout import Start, derive_seed
from components.storage import read_parquet
from components.tree.forest import Forest
from components.tree.schema import Node, Origin
from tasks.allocate_roots import ROOTS_SCHEMA
from tasks.inputs import prompts, sampler, write_forest
from tasks.stage import Context, stage


@stage("generate", output="generated.parquet")
def generate(context: Context, policy: Path, roots: Path) -> dict[str, float]:
    """Writes one tree per active prompt, with its factual rollouts still unverified."""
    params = context.params
    train = prompts(params, "train")
    sample = sampler(params, policy, context.iteration)
    nodes: list[Node] = []
    starts: list[Start] = []
    for row in read_parquet(roots, ROOTS_SCHEMA).to_pylist():
        if row["tree_id"] < 0:
            continue
        prompt = train[row["prompt_id"]]
        ids = sample.renderer.prompt_ids(sample.environment.chat(prompt))
        if len(ids) >= params.engine.max_tokens:
            raise UserError(
                f"engine.max_tokens={params.engine.max_tokens} leaves no room after the {len(ids)} tokens of "
                f"prompt {prompt.prompt_id}"
            )
        nodes.append(
            Node(
                tree_id=row["tree_id"],
                prompt_id=prompt.prompt_id,
                node_id=len(nodes),
                parent_id=-1,
                turn=0,
                origin=Origin.ROOT,
                token_ids=ids,
                is_action=[False] * len(ids),
                logprobs=[float("nan")] * len(ids),
                observation=prompt.question,
                v_hat=row["v_hat"],
                allocated=row["allocated"],
                rule=params.allocation.arm,
                policy_version=context.iteration,
            )
        )
        state = sample.environment.reset(prompt)
        starts += [
            Start(
                prompt,
                row["tree_id"],
                len(nodes) - 1,
                sibling,
                0,
                ids,
                state,
                derive_seed(params.run.seed, context.iteration, prompt.prompt_id, 0, sibling),
            )
            for sibling in range(row["allocated"])
        ]
    nodes += sample.sample(starts, len(nodes), context.counter(len(starts)))
    write_forest(context.output, Forest(nodes))
    return {"rollouts": float(len(starts)), "tokens": float(sum(sum(n.is_action) for n in nodes))}
