"""A run as files: what the stages write, that it adds up, and that it can be stopped and harmed anywhere."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from components.environments import ENVIRONMENTS
from components.environments.multihop import MultiHop
from components.errors import UserError
from components.storage import read_parquet, write_sealed
from components.tree.schema import NODE_SCHEMA, Origin, Status, StopReason
from tasks.inputs import read_forest
from tasks.run import Run
from tasks.stage import read_stages
from tasks.summary import append_metrics, finished_iterations, mend_metrics
from tests.tasks.pipeline import fingerprints, forests, new_run, train

STAGES = (
    "evaluate", "score_prompts", "allocate_roots", "generate", "verify_factual", "expand_prefixes",
    "verify_counterfactual", "refit_predictor", "update_policy",
)  # fmt: skip
KEYS = {
    "iteration", "eval/accuracy", "train/reward", "effective_ratio/prompts", "effective_ratio/leaves", "budget/units",
    "budget/leaves", "tokens/generated", "tree/unique_token_ratio", "predictor/spearman_root",
    "predictor/spearman_prefix", "predictor/brier", "policy/grad_norm", "policy/ratio_mean", "time/iteration",
    "sampling/prefix_cache_share", *(f"time/{stage}" for stage in STAGES),
}  # fmt: skip


@pytest.fixture
def copied(finished, tmp_path) -> Run:
    """A copy of a finished run, to be changed."""
    return Run(shutil.copytree(finished.path, tmp_path / "r"))


def test_metrics_have_every_key_of_the_contract(finished):
    lines = finished.metrics()
    assert [line["iteration"] for line in lines] == [0, 1]
    for line in lines:
        assert set(line) >= KEYS
        assert all(isinstance(v, int | float) or v is None for v in line.values())
    assert 0 <= lines[0]["eval/accuracy"] <= 1
    assert 0.5 < lines[0]["sampling/prefix_cache_share"] < 1
    assert lines[0]["policy/ratio_mean"] == pytest.approx(1.0, abs=0.1)


def test_every_paid_rollout_is_stored_verified_and_accounted_for(finished):
    for forest, line in zip(forests(finished), finished.metrics(), strict=True):
        assert line["budget/units"] <= finished.params.allocation.budget.units
        leaves = [forest.nodes[i] for i in forest.leaves_L]
        assert (
            len(leaves)
            == line["budget/leaves"]
            == sum(line[f"budget/{kind}"] for kind in ("factual_rollouts", "extra_roots", "continuations"))
        )
        assert all((n.reward is not None) == (n.status == Status.OK) for n in leaves)
        granted = sum(n.allocated for n in forest.nodes)
        assert granted + line["budget/extra_roots"] == len(leaves)
        assert line["tokens/generated"] == sum(sum(n.is_action) for n in forest.nodes)


def test_continuations_start_at_visited_prefixes_and_share_their_tokens(finished):
    first_turns = [
        (forest.nodes[node.anchor_id], node)
        for forest in forests(finished)
        for node in forest.nodes
        if node.origin == Origin.COUNTERFACTUAL and node.parent_id == node.anchor_id
    ]
    assert first_turns
    for anchor, _ in first_turns:
        assert (anchor.origin, anchor.is_terminal) == (Origin.FACTUAL, False)
        assert None not in (anchor.v_hat, anchor.concentration)


def test_forest_of_the_update_holds_values_and_advantages(finished):
    forest = forests(finished)[0]
    assert all(n.value is not None and 0 <= n.value <= 1 for n in forest.nodes if n.parent_id < 0)
    trained = [n for n in forest.nodes if n.advantage is not None]
    assert trained
    assert all(any(n.is_action) and n.parent_id >= 0 for n in trained)


def test_stages_write_the_documented_files(finished):
    names = {p.name for p in finished.iteration(0).iterdir()}
    assert names >= {f"{name}.parquet" for name in ("scored", "roots", "factual", "expanded", "forest")}
    assert names >= {"predictor", "policy", "trees.html"}
    table = read_parquet(finished.iteration(0) / "forest.parquet")
    assert table.schema.equals(NODE_SCHEMA)
    assert np.isnan(np.array(table["logprobs"].to_pylist()[0])).all()


def test_page_of_an_iteration_shows_its_trees_and_loads_nothing(finished):
    page = (finished.iteration(1) / "trees.html").read_text()
    root = next(n for n in read_forest(finished.iteration(1) / "forest.parquet").nodes if n.parent_id < 0)
    for shown in (root.observation, '"stop":"answered"', '"pieces":["'):
        assert shown in page
    assert re.findall(r"src=|https?://(?!www\.w3\.org/2000/svg)", page) == []


def test_policy_is_an_ordinary_checkpoint(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = finished.iteration(1) / "policy"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "the boss of ann ?"}]
    chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(chat, add_special_tokens=False, return_tensors="pt").input_ids
    assert model.generate(ids, max_new_tokens=5).shape[0] == 1
    assert not [path for kind in ("bin", "pt", "pkl") for path in folder.rglob(f"*.{kind}")]


def test_continuations_start_in_the_world_of_their_prefix(params, data_dir, tmp_path, monkeypatch):
    """A text prefix restored in a fresh world is a silent fault of several peers."""

    class Counting(MultiHop):
        def step(self, state, action):
            transition = super().step(state, action)
            return replace(transition, answer=str(transition.state.turn)) if transition.done else transition

    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", Counting)
    run = new_run(params, data_dir, tmp_path, run={"iterations": 1})
    train(run)
    answered = [n for n in forests(run)[0].nodes if n.stop_reason == StopReason.ANSWERED]
    assert any(n.origin == Origin.COUNTERFACTUAL for n in answered)
    assert [n.answer for n in answered] == [str(n.turn) for n in answered]


def test_rollouts_of_a_failing_verifier_are_counted_and_neither_wrong_nor_trained(
    params, data_dir, tmp_path, monkeypatch, caplog
):
    class Broken(MultiHop):
        def score(self, prompt, answer):
            raise ConnectionError("the grader is away")

    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", Broken)
    run = new_run(params, data_dir, tmp_path, run={"iterations": 1})
    train(run)
    assert "could not be verified; the first: ConnectionError: the grader is away" in caplog.text
    line = run.metrics()[0]
    assert line["rollouts/unscored"] == line["budget/leaves"] > 0
    assert line["train/reward"] is None
    assert line["policy/optimizer_steps"] == 0


def test_run_stopped_after_any_stage_ends_in_the_same_files(params, data_dir, finished, tmp_path):
    """One run, stopped after each of its stages in turn: nothing that is done is done again."""
    run = new_run(params, data_dir, tmp_path)
    for number in (0, 1):
        done: dict[str, float] = {}
        for stop_after in range(1, len(STAGES) + 2):
            train(run, stop_after)
            entries = {name: entry["began"] for name, entry in read_stages(run.iteration(number)).items()}
            assert entries.items() >= done.items()
            assert len(entries) == stop_after
            done = entries
    train(run)
    assert fingerprints(run) == fingerprints(finished)
    assert [line["iteration"] for line in run.metrics()] == [0, 1]


def test_continuing_a_finished_run_repeats_nothing_and_can_go_further(params, data_dir, copied, tmp_path):
    before = fingerprints(copied)
    assert finished_iterations(copied) == 2
    with pytest.raises(UserError, match=r"run\.iterations=1: run r has already gone further"):
        new_run(params, data_dir, tmp_path, run={"iterations": 1})
    longer = new_run(params, data_dir, tmp_path, run={"iterations": 3})
    train(longer)
    assert before.items() <= fingerprints(longer).items()
    assert [line["iteration"] for line in longer.metrics()] == [0, 1, 2]


def flip(path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_damaged_output_of_a_stage_is_written_again_with_a_warning(copied, finished, damage, caplog):
    """The record is gone as well, so that the iteration is in progress."""
    folder = copied.iteration(1)
    stages = {name: entry for name, entry in read_stages(folder).items() if name != "record"}
    write_sealed(folder / "manifest.json", stages)
    path = folder / "factual.parquet"
    path.unlink() if damage == "missing" else flip(path)
    train(copied)
    assert "factual.parquet is missing or damaged; the stage verify_factual runs again" in caplog.text
    assert read_stages(folder)["generate"] == stages["generate"]
    assert fingerprints(copied) == fingerprints(finished)


@pytest.mark.parametrize("lost", ["policy/model.safetensors", "predictor/head.safetensors", "forest.parquet"])
def test_iteration_whose_state_is_lost_is_made_again_from_the_one_before(copied, finished, lost, caplog):
    (copied.iteration(1) / lost).unlink()
    assert finished_iterations(copied) == 1
    assert "going on from iteration 1" in caplog.text
    train(copied)
    assert fingerprints(copied) == fingerprints(finished)


def test_run_that_lost_all_checkpoints_is_an_error_not_a_fresh_start(copied):
    for number in (0, 1):
        (copied.iteration(number) / "policy" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"iterations/0001/policy is missing .* no earlier policy to go on from"):
        finished_iterations(copied)


@pytest.mark.parametrize("damage", ["torn", "missing", "middle", "not text", "one too many"])
def test_damaged_metrics_are_written_again_from_the_iterations(copied, damage, caplog):
    whole = copied.metrics_path.read_text()
    damaged = {
        "torn": whole[:-30],
        "missing": "",
        "middle": "{oops\n" + whole,
        "not text": "\udcff",
        "one too many": whole * 2,
    }
    copied.metrics_path.write_text(damaged[damage], errors="surrogateescape")
    mend_metrics(copied, 2)
    assert copied.metrics_path.read_text() == whole
    assert ("was damaged" in caplog.text) == (damage in ("middle", "not text"))
    append_metrics(copied, 1)
    assert copied.metrics_path.read_text() == whole + whole.splitlines(keepends=True)[-1]


@pytest.mark.parametrize("middle", [b"{oops", b"\xff", b"{}", b"3"])
def test_damaged_middle_line_of_the_metrics_names_the_line(tmp_path, middle):
    broken = Run(tmp_path)
    broken.metrics_path.write_bytes(b'{"iteration": 0}\n' + middle + b'\n{"iteration": 2}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is damaged"):
        broken.metrics()
