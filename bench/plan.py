"""What `trace plan` predicts against what is measured: peak memory of updates and of sampling, tokens of a run.

Memory is the peak of the resident set of a process of its own, less what it had after its imports. Run from the
repository: OMP_NUM_THREADS=1 python -m bench.plan
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.results import record
from components.params.load import load_params
from components.params.root import Params, compose
from components.planning import make_cluster, memory, plan
from components.planning.memory import Layout

# name: (layers, hidden, intermediate, vocabulary, sequences, tokens of a sequence, sequences in one forward pass)
UPDATES = {
    "weights": (6, 768, 3072, 1024, 4, 64, 1),
    "activations": (8, 256, 1024, 1024, 8, 512, 8),
    "logits": (2, 128, 512, 32768, 8, 256, 8),
}
SAMPLINGS = {
    "weights": (6, 768, 3072, 1024, 4, 96, 4),
    "cache": (12, 512, 1024, 1024, 32, 384, 32),
    "logits": (2, 128, 512, 65536, 64, 96, 64),
}


def settings(shape: tuple[int, ...], folder: str) -> Params:
    *_, sequences, length, together = shape
    return compose(
        {
            "environment": {"name": "search", "corpus": "none"},
            "policy": {"path": folder},
            "engine": {"batch_size": sequences, "max_tokens": length, "max_turn_tokens": length},
            "update": {
                "advantage": "grpo", "epochs": 1, "minibatches": 1, "micro_batch_tokens": together * length,
            },
        }
    )  # fmt: skip


def child(what: str, name: str) -> None:
    """Prints predicted and measured bytes."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    from components.policy.engines.base import Request
    from components.policy.engines.transformers.engine import TransformersEngine
    from components.policy.tiny import build_tokenizer
    from components.policy.trainers.torch.trainer import TorchTrainer
    from components.tree.forest import Forest

    torch.set_num_threads(1)
    shape = (UPDATES if what == "update" else SAMPLINGS)[name]
    layers, hidden, intermediate, vocabulary, sequences, length, _ = shape
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "policy"
        if os.fork() == 0:  # what making the model takes is not to be seen here
            torch.manual_seed(0)
            config = Qwen3Config(
                vocab_size=vocabulary, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
                num_attention_heads=hidden // 32, num_key_value_heads=hidden // 64, head_dim=32,
                tie_word_embeddings=False, eos_token_id=None, bos_token_id=None,
            )  # fmt: skip
            Qwen3ForCausalLM(config).save_pretrained(folder)
            tokenizer: PreTrainedTokenizerFast = build_tokenizer(["a", "b"])
            tokenizer.save_pretrained(folder)
            os._exit(0)
        os.wait()
        params = settings(shape, str(folder))
        layout, base = Layout.of(params), resident()
        if what == "update":
            forest = Forest(pairs(sequences, length))
            TorchTrainer(params.update, 1.0).update(forest, folder, Path(temporary) / "next", 0)
            parts, last = memory.update(layout, sequences), memory.writing(layout)
            predicted = max(sum(parts.values()), sum(last.values()))
        else:
            engine, third = TransformersEngine(params.engine), length // 3
            engine.load(folder)
            requests = [Request([5 + i, *range(3, third + 2)], i, third) for i in range(sequences)]
            said = engine.generate(requests)
            again = [Request(r.token_ids + c.token_ids, r.seed, third) for r, c in zip(requests, said, strict=True)]
            engine.generate(again)
            predicted = sum(memory.sampling(layout, third).values())
    print(json.dumps([predicted, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - base]))


def pairs(sequences: int, length: int) -> list:
    """A forest of trees with two leaves, one right and one wrong."""
    from components.tree.schema import Node, Origin, StopReason

    nodes: list[Node] = []
    prompt = length // 4
    for tree in range(sequences // 2):
        root = len(nodes)
        nodes.append(
            Node(tree, str(tree), root, -1, 0, Origin.ROOT, token_ids=[3] * prompt, is_action=[False] * prompt,
                 logprobs=[float("nan")] * prompt)
        )  # fmt: skip
        nodes += [
            Node(tree, str(tree), root + 1 + leaf, root, 1, Origin.FACTUAL, root, leaf, [4 + leaf] * (length - prompt),
                 [True] * (length - prompt), [-1.0] * (length - prompt), "a", "b", StopReason.ANSWERED,
                 reward=float(leaf))
            for leaf in (0, 1)
        ]  # fmt: skip
    return nodes


def resident() -> int:
    """Bytes of the resident set now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def default_run() -> dict[str, float]:
    """Tokens of two iterations of the embedded default, and bytes of its forests on disk."""
    from tasks.inputs import read_forest

    params = load_params(Path("params.yaml"))
    with tempfile.TemporaryDirectory() as temporary:
        changes = {"run.iterations": 2, "run.runs_dir": temporary, "tracking.mlflow": "false", "evaluation.every": 2}
        command = [sys.executable, "-m", "flows.cli", "train", "--run-id", "r"]
        command += [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        folder = Path(temporary) / "r" / "iterations" / "0001"
        forest = read_forest(folder / "forest.parquet")
        sizes = [len(n.token_ids) for n in forest.nodes]
        tree, paths = sum(sizes), sum(len(forest.prefix_ids(leaf)) for leaf in forest.leaves_L.tolist())
        on_disk = sum(file.stat().st_size for file in folder.glob("*.parquet"))
    made = plan(params, make_cluster(0, "H100", None))
    return {
        "plan_tree_tokens_ratio": made.tree_tokens / tree,
        "plan_path_tokens_ratio": made.path_tokens / paths,
        "plan_forest_bytes_ratio": made.disk["forests"] / made.iterations / on_disk,
        "plan_default_tree_tokens": tree,
        "plan_default_path_tokens": paths,
    }


def main() -> None:
    numbers: dict[str, float] = {}
    for what, shapes in (("update", UPDATES), ("sampling", SAMPLINGS)):
        for name in shapes:
            command = [sys.executable, "-m", "bench.plan", what, name]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            predicted, measured = json.loads(out.splitlines()[-1])
            print(f"{what:9} {name:12} predicted {predicted / 1e6:8.0f} MB, measured {measured / 1e6:8.0f} MB")
            numbers[f"plan_{what}_{name}_memory_ratio"] = predicted / measured
    record(numbers | default_run())


if __name__ == "__main__":
    child(*sys.argv[1:]) if len(sys.argv) > 1 else main()
