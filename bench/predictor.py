"""Predictor quality by kind and depth, and what it is worth, on the embedded task and on a hard setting of it.

For each seed, `trace` trains a policy. At some iterations V is measured by Monte Carlo at every prompt of the pool,
which is a uniform draw, and at every visited prefix. Each kind of predictor is fitted on the same forests, as it would
have been in the run, and compared with it. Then one iteration's budget is spent on the same pool by `trace` with the
learned predictor, by `trace` with the oracle, and flat: how much of the oracle's gain in effective ratio is reached?
On the default setting only the default predictor is judged.

Run from the repository: OMP_NUM_THREADS=1 python -m bench.predictor [SEEDS]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from scipy.stats import spearmanr

from bench.results import record
from components.build import make_arm, make_environment, make_predictor
from components.params.load import load_params
from components.params.root import Params, compose
from components.policy.renderer import Renderer
from components.predictor.base import Prefix, labels_of, prefixes_of
from components.predictor.metrics import expected_calibration_error
from components.predictor.models import PREDICTORS
from components.storage import read_parquet
from components.tree.anchors import visited_anchors
from components.tree.metrics import effective_ratio_by_prompt, effective_ratio_matched
from tasks.expand import expand_prefixes
from tasks.inputs import prompts, read_forest
from tasks.prepare import prepare_data, start_policy
from tasks.refit import refit_predictor
from tasks.run import Run, open_run
from tasks.sample import allocate_roots, generate
from tasks.score import score_prompts
from tasks.update import update_policy
from tasks.verify import verify_counterfactual, verify_factual

PARAMS = {"default": "params.yaml", "hard": "params/multihop-hard.yaml"}
ITERATIONS, MEASURED = 13, (4, 8, 12)
KINDS = [kind for kind in PREDICTORS if kind != "oracle"]
CHANGES: dict[str, dict[str, object]] = {
    "encoder": {"predictor.learning_rate": 1e-3, "predictor.batch_size": 64},
    "backbone": {"predictor.learning_rate": 3e-4, "predictor.batch_size": 64},
}


def settings(folder: Path, seed: int, **changes: object) -> Params:
    """Parameters of a run in `folder`, which is named after its setting."""
    fixed = {"run.seed": seed, "run.iterations": ITERATIONS, "run.keep_policies": ITERATIONS + 1}
    paths = {"run.runs_dir": str(folder), "run.data_dir": str(folder / "data")}
    return load_params(Path(__file__).parents[1] / PARAMS[folder.name], {**fixed, **paths, **changes})


def spend(run: Run, number: int, policy: Path, predictor: Path | None) -> Path:
    """One iteration up to the verified forest."""
    scored = score_prompts.fn(run.path, number, policy=policy, predictor=predictor)
    roots = allocate_roots.fn(run.path, number, scored=scored)
    generated = generate.fn(run.path, number, policy=policy, roots=roots)
    factual: Path = verify_factual.fn(run.path, number, forest=generated)
    if not make_arm(run.params).branches:
        return factual
    expanded = expand_prefixes.fn(run.path, number, policy=policy, predictor=predictor, factual=factual)
    verified: Path = verify_counterfactual.fn(run.path, number, forest=expanded)
    return verified


def train(run: Run) -> list[Path]:
    """Trains with `trace`; returns the policy that sampled each iteration."""
    prepare_data.fn(run.path)
    policies, predictor = [start_policy(run.params)], None
    for number in range(ITERATIONS):
        verified = spend(run, number, policies[-1], predictor)
        earlier = [run.iteration(k) / "forest.parquet" for k in range(max(0, number - 4), number)]
        predictor = refit_predictor.fn(
            run.path, number, policy=policies[-1], predictor=predictor, verified=verified, earlier=earlier
        )
        policies.append(update_policy.fn(run.path, number, policy=policies[-1], verified=verified))
    return policies


def anchors(run: Run, number: int) -> list[Prefix]:
    """Every prompt of the iteration's pool, and every prefix that its factual rollouts visited."""
    train_prompts = prompts(run.params, "train")
    forest = read_forest(run.iteration(number) / "forest.parquet")
    rows = visited_anchors(forest)
    roots = {n.prompt_id: n.token_ids for n in forest.nodes if n.parent_id < 0}
    renderer, task = Renderer.load(start_policy(run.params)), make_environment(run.params)
    pool = read_parquet(run.iteration(number) / "scored.parquet")["prompt_id"].to_pylist()
    at_roots = [
        Prefix.root(train_prompts[p], roots.get(p) or renderer.prompt_ids(task.chat(train_prompts[p]))) for p in pool
    ]
    return at_roots + prefixes_of(forest, rows.node_A[rows.is_prefix_A].tolist(), train_prompts)


def fit(run: Run, kind: str, policies: list[Path], folder: Path) -> tuple[list[Path], float]:
    """Fits a kind on the run's forests, as it goes; returns its state before each iteration and seconds per fit."""
    params = settings(folder, run.params.run.seed, **{"predictor.name": kind, **CHANGES.get(kind, {})})
    train_prompts, states, spent = prompts(params, "train"), [], 0.0
    state: Path | None = None
    for number in range(max(MEASURED)):
        replayed = range(number, max(-1, number - 1 - params.predictor.replay), -1)
        forests = [read_forest(run.iteration(k) / "forest.parquet") for k in replayed]
        labels = [labels_of(forest, train_prompts) for forest in forests]
        start = time.perf_counter()
        model = make_predictor(params, policies[number], state)
        prefixes = [prefix for each, _, _ in labels for prefix in each]
        successes, trials = (np.concatenate([label[part] for label in labels]) for part in (1, 2))
        model.fit(prefixes, successes, trials, len(labels[0][0]), seed=number)
        spent += time.perf_counter() - start
        state = folder / f"{kind}-{run.params.run.seed}-{number}"
        model.save(state)
        states.append(state)
    return states, spent / len(states)


def study(setting: str, seed: int) -> dict[str, list[float]]:
    """All figures of one seed, each a list over the measured iterations."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return _study(seed, Path(folder) / setting)


def _study(seed: int, folder: Path) -> dict[str, list[float]]:
    run = open_run(settings(folder, seed), f"seed-{seed}")
    policies = train(run)
    found: dict[str, list[float]] = {}
    truth = {}
    for number in MEASURED:
        oracle = make_predictor(
            settings(folder, 1000 + seed, **{"predictor.name": "oracle", "predictor.rollouts": 32}), policies[number]
        )
        where = anchors(run, number)
        truth[number] = where, oracle.predict(where).mean_A
    for kind in KINDS if folder.name == "hard" else [compose({}).predictor.name]:
        states, seconds = fit(run, kind, policies, folder)
        params = settings(folder, seed, **{"predictor.name": kind})
        found.setdefault(f"{kind}/seconds", []).append(seconds)
        for number in MEASURED:
            where, value = truth[number]
            belief = make_predictor(params, policies[number], states[number - 1]).predict(where)
            turn = np.array([p.turn for p in where])
            for name, rows in (
                ("root", turn == 0), ("prefix", turn > 0), *((f"depth_{d}", turn == d) for d in (1, 2, 3)),
            ):  # fmt: skip
                mean, v = belief.mean_A[rows], value[rows]
                rank = spearmanr(mean, v).statistic if np.ptp(mean) else 0.0  # a constant ranks nothing
                found.setdefault(f"{kind}/spearman_{name}", []).append(float(rank))
                error = float(np.mean((mean - v) ** 2))
                found.setdefault(f"{kind}/mse_share_{name}", []).append(error / float(np.var(v)))
                found.setdefault(f"{kind}/ece_{name}", []).append(expected_calibration_error(mean, v))
    default = settings(folder, seed).predictor.name
    for number in MEASURED:
        for name, changes, state in (
            ("flat", {"allocation.arm": "grpo"}, None),
            ("learned", {}, folder / f"{default}-{seed}-{number - 1}"),
            ("oracle", {"predictor.name": "oracle"}, folder / f"{default}-{seed}-{number - 1}"),
        ):
            again = open_run(settings(folder, seed, **changes), f"{name}-{seed}")
            forest = read_forest(spend(again, number, policies[number], state))
            found.setdefault(f"{name}/effective_ratio", []).append(effective_ratio_by_prompt(forest))
            found.setdefault(f"{name}/effective_ratio_at_4", []).append(effective_ratio_matched(forest, 4))
    return found


def measure(setting: str, seeds: int) -> dict[str, np.ndarray]:
    """Figures by name, one for each seed, which are printed with 95 % intervals (normal)."""
    found: dict[str, list[list[float]]] = {}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for figures in pool.map(study, [setting] * seeds, range(seeds)):
            for name, values in figures.items():
                found.setdefault(name, []).append(values)
    mean = {name: np.mean(values, axis=1) for name, values in found.items()}  # one figure a seed
    for name, each in mean.items():
        half = 1.96 * each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else float("nan")
        print(f"{setting:8} {name:36} {each.mean():.3f} ± {half:.3f}")
    return mean


def main(seeds: int) -> None:
    default, mean = compose({}).predictor.name, measure("hard", seeds)
    easy = measure("default", seeds)
    flat, learned, oracle = (mean[f"{name}/effective_ratio"].mean() for name in ("flat", "learned", "oracle"))
    record(
        {
            "predictor_seeds": float(seeds),
            "predictor_spearman_root": float(easy[f"{default}/spearman_root"].mean()),
            "predictor_spearman_prefix": float(easy[f"{default}/spearman_prefix"].mean()),
            "predictor_effective_ratio_flat": float(flat),
            "predictor_effective_ratio_learned": float(learned),
            "predictor_effective_ratio_oracle": float(oracle),
            "predictor_gain_share_of_oracle": float((learned - flat) / (oracle - flat)),
        }
        | {
            f"predictor_{kind.replace('-', '_')}_{what}": float(mean[f"{kind}/{what}"].mean())
            for kind in KINDS
            for what in ("spearman_root", "spearman_prefix", "mse_share_root", "mse_share_prefix", "seconds")
        }
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
