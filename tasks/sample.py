"""Sample, stage 1: how many factual rollouts each prompt gets, and the rollouts themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.allocation.anchors import Belief, Seen
from components.allocation.arm import root_rounds
from components.build import make_arm, make_sampler
from components.errors import UserError
from components.policy.rollout import Sampler, Start
from components.seeds import derive_seed
from components.storage import read_parquet, write_parquet
from components.tree.anchors import SUCCESS
from components.tree.forest import Forest, tree_by_tree
from components.tree.schema import Node, Origin
from tasks.inputs import prompts, read_forest, write_forest
from tasks.score import SCORED_SCHEMA
from tasks.stage import WHOLE, Context, Shard, stage
from tasks.verify import score_new

ROOTS_SCHEMA = SCORED_SCHEMA.append(pa.field("allocated", pa.int64(), nullable=False))  # m_i; 0: skipped


@stage("allocate roots", output="roots.parquet")
def allocate_roots(context: Context, scored: Path) -> dict[str, float]:
    """Writes the counts m_i of the arm's first round of roots (Eq. 13 for `trace`), planned over the whole pool."""
    params = context.params
    table = read_parquet(scored, SCORED_SCHEMA)
    rng = np.random.default_rng(derive_seed(params.run.seed, context.iteration, "roots"))
    arm, nothing = make_arm(params), Seen.nothing(len(table))
    counts = arm.plan_roots(_belief(table), nothing, params.allocation.budget, rng)
    write_parquet(context.output, pa.table([*table.columns, pa.array(counts, pa.int64())], schema=ROOTS_SCHEMA))
    return {"active_prompts": float((counts > 0).sum()), "factual_rollouts": float(counts.sum())}


@stage("generate", output="generated.parquet")
def generate(context: Context, policy: Path, roots: Path, shard: Shard = WHOLE) -> dict[str, float]:
    """Writes one tree per active prompt of the shard, with its factual rollouts still unverified."""
    index, count = shard
    sampler = make_sampler(context.params, policy, context.iteration)
    active = read_parquet(roots, ROOTS_SCHEMA).filter(pc.field("allocated") > 0)
    plan = [(row, row["allocated"]) for row in active.to_pylist()]
    mine = [plan[row] for row in np.array_split(np.arange(len(plan)), count)[index].tolist()]
    nodes: list[Node] = []
    new, rollouts = sample_roots(context, sampler, nodes, mine)
    write_forest(context.output, tree_by_tree(nodes))
    return {"rollouts": float(rollouts), "tokens": float(sum(sum(n.is_action) for n in new))} | sampler.usage()


def sample_roots(
    context: Context, sampler: Sampler, nodes: list[Node], plan: list[tuple[dict[str, object], int]]
) -> tuple[list[Node], int]:
    """Samples factual rollouts, and appends them and the roots of new trees to `nodes`.

    Args:
        context: The stage that pays.
        sampler: Holds the policy.
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
        ids = sampler.renderer.prompt_ids(sampler.environment.chat(prompt))
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
        state = sampler.world(prompt)
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
    new = sampler.sample(starts, len(nodes), context.counter(len(starts)))
    nodes += new
    return new, len(starts)


@stage("refill roots", output="refilled.parquet")
def refill_roots(context: Context, policy: Path, roots: Path, factual: Path) -> dict[str, float]:
    """Writes the forest with the further rounds of factual rollouts that the arm asks for once outcomes are known."""
    params = context.params
    table = read_parquet(roots, ROOTS_SCHEMA)
    ids, nodes = table["prompt_id"].to_pylist(), read_forest(factual).nodes
    rng = np.random.default_rng(derive_seed(params.run.seed, context.iteration, "refill"))
    sampler = make_sampler(params, policy, context.iteration)
    rollouts = tokens = 0

    def sample(counts_P: np.ndarray) -> Seen:
        nonlocal rollouts, tokens
        rows = np.flatnonzero(counts_P)
        plan = list(zip(table.take(rows).to_pylist(), counts_P[rows].tolist(), strict=True))
        new, count = sample_roots(context, sampler, nodes, plan)
        score_new(params, nodes)
        rollouts, tokens = rollouts + count, tokens + sum(sum(n.is_action) for n in new)
        return _seen(ids, Forest(nodes))

    before = _seen(ids, Forest(nodes))
    rounds = root_rounds(make_arm(params), _belief(table), params.allocation.budget, rng, sample, before)
    write_forest(context.output, tree_by_tree(nodes))
    return {"rounds": float(rounds), "rollouts": float(rollouts), "tokens": float(tokens)} | sampler.usage()


def _belief(table: pa.Table) -> Belief:
    """What the predictor believes of the pool's prompts."""
    return Belief(table["v_hat"].to_numpy(), table["concentration"].to_numpy())


def _seen(ids: list[str], forest: Forest) -> Seen:
    """What each prompt of the pool has shown so far."""
    position = {prompt_id: index for index, prompt_id in enumerate(ids)}
    sampled, successes, failures = (np.zeros(len(ids), dtype=np.int64) for _ in range(3))
    for leaf in forest.leaves_L.tolist():
        prompt, reward = position[forest.nodes[leaf].prompt_id], forest.reward_N[leaf]
        sampled[prompt] += 1
        successes[prompt] += reward > SUCCESS
        failures[prompt] += reward <= SUCCESS
    return Seen(sampled, successes, failures)
