"""A run as files: what the stages write, that it adds up, and that it can be stopped anywhere."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from components.environments import ENVIRONMENTS
from components.environments.multihop import MultiHop
from components.errors import UserError
from components.storage import read_json, read_parquet, write_json
from components.tree.schema import NODE_SCHEMA, Origin, Status, StopReason
from tasks.inputs import prompts, read_forest
from tasks.prepare import prepare_data, warm_up_policy
from tasks.retain import retain
from tasks.run import Run, find_run, lock
from tasks.stage import read_stages
from tasks.summary import append_metrics, finished_iterations, mend_metrics, write_summary
from tests.tasks.pipeline import fingerprints, forests, new_run, stages, train

KEYS = {
    "iteration", "eval/accuracy", "train/reward", "effective_ratio/prompts", "effective_ratio/leaves", "budget/units",
    "budget/leaves", "tokens/generated", "tree/unique_token_ratio", "predictor/spearman_root",
    "sampling/prefix_cache_share", "policy/entropy", "policy/learning_rate", "tokens/per_s", "rollouts/cut_share",
    "rollouts/tokens_mean", "rollouts/tokens_p95", "rollouts/tokens_max", "rollouts/turns_mean", "stop/answered",
    "predictor/spearman_prefix", "predictor/brier", "policy/grad_norm", "policy/ratio_mean", "time/iteration",
    *(f"time/{t}" for t in ("score_prompts", "allocate_roots", "generate", "verify_factual", "expand_prefixes",
                            "verify_counterfactual", "refit_predictor", "update_policy", "evaluate")),
}  # fmt: skip


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
    seen = 0
    for forest in forests(finished):
        for node in forest.nodes:
            if node.origin == Origin.COUNTERFACTUAL and node.parent_id == node.anchor_id:
                anchor = forest.nodes[node.anchor_id]
                assert anchor.origin == Origin.FACTUAL
                assert not anchor.is_terminal
                assert anchor.v_hat is not None
                assert anchor.concentration is not None
                seen += 1
    assert seen > 0


def test_forest_of_the_update_holds_values_and_advantages(finished):
    forest = forests(finished)[0]
    roots = [n for n in forest.nodes if n.parent_id < 0]
    assert all(n.value is not None and 0 <= n.value <= 1 for n in roots)
    trained = [n for n in forest.nodes if n.advantage is not None]
    assert trained
    assert all(any(n.is_action) for n in trained)
    assert all(n.parent_id >= 0 for n in trained)


def test_policy_is_an_ordinary_checkpoint(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = finished.iteration(1) / "policy"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "the boss of ann ?"}]
    chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(chat, add_special_tokens=False, return_tensors="pt").input_ids
    assert model.generate(ids, max_new_tokens=5).shape[0] == 1
    assert not list(folder.rglob("*.bin")) + list(folder.rglob("*.pt")) + list(folder.rglob("*.pkl"))


@pytest.mark.parametrize("stop_after", [1, 4, 6, 8, 9, 10, 13, 17, 19])
def test_run_stopped_after_any_stage_ends_in_the_same_files(params, data_dir, finished, tmp_path, stop_after):
    run = new_run(params, data_dir, tmp_path)
    train(run, stop_after)
    before = {k: p["seconds"] for k, p in read_stages(run.iteration(0)).items()}
    train(run)
    after = read_stages(run.iteration(0))
    assert all(after[name]["seconds"] == seconds for name, seconds in before.items() if name != "record")
    assert fingerprints(run) == fingerprints(finished)
    assert [line["iteration"] for line in run.metrics()] == [0, 1]


def test_continuing_a_finished_run_repeats_nothing_and_can_go_further(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path)
    train(run)
    prints = fingerprints(run)
    assert finished_iterations(run) == 2
    longer = new_run(params, data_dir, tmp_path, run={"iterations": 3})
    train(longer)
    assert prints.items() <= fingerprints(longer).items()
    assert [line["iteration"] for line in longer.metrics()] == [0, 1, 2]


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_damaged_output_is_made_anew_with_a_warning(params, data_dir, finished, tmp_path, damage, caplog):
    run = new_run(params, data_dir, tmp_path)
    train(run, stop_after=7)
    path = run.iteration(0) / "factual.parquet"
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    train(run)
    assert "factual.parquet is missing or damaged" in caplog.text
    assert fingerprints(run) == fingerprints(finished)


def test_damaged_newest_checkpoint_goes_back_to_the_one_before(params, data_dir, finished, tmp_path, caplog):
    run = new_run(params, data_dir, tmp_path)
    train(run)
    weights = run.iteration(1) / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert finished_iterations(run) == 1
    assert "going on from iteration 1" in caplog.text
    train(run)
    assert fingerprints(run) == fingerprints(finished)


def test_lost_first_checkpoints_are_an_error_not_a_fresh_start(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path)
    train(run)
    for number in (0, 1):
        (run.iteration(number) / "policy" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no policy checkpoint is whole"):
        finished_iterations(run)


def test_continuations_start_in_the_world_of_their_prefix(params, data_dir, tmp_path, monkeypatch):
    """A text prefix restored in a fresh world is a silent fault of several peers."""

    class Counting(MultiHop):
        def step(self, state, action):
            transition = super().step(state, action)
            return replace(transition, answer=str(transition.state.turn)) if transition.done else transition

    monkeypatch.setitem(ENVIRONMENTS._found, "multihop", Counting)
    run = new_run(params, data_dir, tmp_path, run={"iterations": 1})
    train(run)
    ended = [n for n in forests(run)[0].nodes if n.stop_reason in (StopReason.ANSWERED, StopReason.MAX_TURNS)]
    assert any(n.origin == Origin.COUNTERFACTUAL for n in ended)
    answered = [n for n in ended if n.stop_reason == StopReason.ANSWERED]
    assert [n.answer for n in answered] == [str(n.turn) for n in answered]


def test_failing_verifier_is_told_and_its_rollouts_are_neither_wrong_nor_trained(
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


def test_lost_forest_goes_back_one_iteration(params, data_dir, finished, tmp_path):
    run = new_run(params, data_dir, tmp_path)
    train(run)
    (run.iteration(1) / "forest.parquet").unlink()
    train(run)
    assert fingerprints(run) == fingerprints(finished)


def test_refused_command_changes_nothing_of_a_run_in_progress(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path)
    before = (run.path / "params.yaml").read_bytes()
    with lock(run), pytest.raises(UserError, match="written by another process"):
        new_run(params, data_dir, tmp_path, run={"iterations": 9, "keep_policies": 1})
    assert (run.path / "params.yaml").read_bytes() == before


def test_other_parameters_are_refused_even_where_the_manifest_is_lost(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path)
    train(run, stop_after=1)
    (run.path / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"run\.seed is 0 there and 9 here"):
        new_run(params, data_dir, tmp_path, run={"seed": 9})
    (run.path / "params.yaml").unlink()
    with pytest.raises(UserError, match=r"no params\.yaml"):
        new_run(params, data_dir, tmp_path)


def test_parameters_that_were_changed_behind_the_runs_back_are_named(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path)
    path = run.path / "params.yaml"
    path.write_text(path.read_text().replace("root_units: 16", "root_units: 18"))
    for again in (lambda: new_run(params, data_dir, tmp_path), lambda: find_run("r", tmp_path)):
        with pytest.raises(UserError, match=r"params\.yaml is not what the run began with \(allocation\.root_units is"):
            again()


def test_another_first_policy_is_refused_while_it_is_still_read(params, data_dir, tmp_path, random_policy):
    policy = shutil.copytree(random_policy, tmp_path / "policy")
    run = new_run(params, data_dir, tmp_path, policy={"path": str(policy)})
    prepare_data.fn(run.path)
    warm_up_policy.fn(run.path)
    weights = policy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(UserError, match="began on another policy than"):
        warm_up_policy.fn(run.path)


def test_fewer_iterations_than_are_there_are_refused(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path)
    train(run)
    with pytest.raises(UserError, match=r"run\.iterations=1: run r has already gone further"):
        new_run(params, data_dir, tmp_path, run={"iterations": 1})


def test_prompt_that_fills_the_whole_rollout_is_refused_before_sampling(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path, engine={"max_tokens": 4})
    with pytest.raises(UserError, match=r"engine\.max_tokens=4 leaves no room"):
        train(run)


@pytest.mark.parametrize("damage", ["torn", "missing", "middle", "not text", "one too many"])
def test_damaged_metrics_are_made_anew_from_the_iterations(params, data_dir, finished, tmp_path, damage, caplog):
    run = Run(tmp_path / "r")
    shutil.copytree(finished.path, run.path)
    whole = run.metrics_path.read_text()
    damaged = {
        "torn": whole[:-30],
        "missing": "",
        "middle": "{oops\n" + whole,
        "not text": "\udcff",
        "one too many": whole * 2,
    }
    run.metrics_path.write_text(damaged[damage], errors="surrogateescape")
    mend_metrics(run, 2)
    assert run.metrics_path.read_text() == whole
    assert ("was damaged" in caplog.text) == (damage in ("middle", "not text"))


@pytest.mark.parametrize("middle", [b"{oops", b"\xff", b"{}", b"3"])
def test_damaged_middle_line_of_the_metrics_names_the_line(tmp_path, middle):
    broken = Run(tmp_path)
    broken.metrics_path.write_bytes(b'{"iteration": 0}\n' + middle + b'\n{"iteration": 2}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is damaged"):
        broken.metrics()


def test_run_whose_data_changed_is_refused(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path)
    prepare_data.fn(run.path)
    run.note(data="another-data-set")
    with pytest.raises(UserError, match="began on the data set another-data-set, but its files now make"):
        prepare_data.fn(run.path)


def test_retention_keeps_the_newest_and_the_best(params, data_dir, tmp_path):
    run = new_run(params, data_dir, tmp_path, run={"iterations": 5, "keep_policies": 1})
    prepare_data.fn(run.path)
    policy, predictor = warm_up_policy.fn(run.path), None
    for number, accuracy in enumerate((0.1, 0.9, 0.3, 0.4, 0.2)):
        for _ in stages(run, number, policy, predictor):
            pass
        line = read_json(run.iteration(number) / "metrics.json") | {"eval/accuracy": accuracy}
        lines = run.metrics()[:-1]
        run.metrics_path.write_text("".join(__import__("json").dumps(x) + "\n" for x in [*lines, line]))
        retain.fn(run.path, number)
        policy, predictor = run.iteration(number) / "policy", run.iteration(number) / "predictor"
    for name in ("policy", "predictor"):  # version 1, made in iteration 0, was the best; version 5 is the newest
        assert sorted(p.parent.name for p in run.path.glob(f"iterations/*/{name}")) == ["0000", "0004"]
    run.note(best=[9, 1.0])  # from before a run that went back
    retain.fn(run.path, 4)
    assert run.manifest["best"] == [1, 0.9]
    for number in range(5):
        assert (run.iteration(number) / "forest.parquet").exists()
        assert not (run.iteration(number) / "verified.parquet").exists()
    assert finished_iterations(run) == 5


def test_stages_write_the_documented_files(finished):
    names = {p.name for p in finished.iteration(0).iterdir()}
    forests = {f"{name}.parquet" for name in ("scored", "roots", "factual", "expanded", "forest")}
    assert names >= forests | {"predictor", "policy", "trees.html"}
    table = read_parquet(finished.iteration(0) / "forest.parquet")
    assert table.schema.equals(NODE_SCHEMA)
    assert np.isnan(np.array(table["logprobs"].to_pylist()[0])).all()


def test_page_of_an_iteration_shows_trees_gold_answers_and_tokens_and_loads_nothing(finished):
    page = (finished.iteration(1) / "trees.html").read_text()
    root = next(n for n in read_forest(finished.iteration(1) / "forest.parquet").nodes if n.parent_id < 0)
    gold = prompts(finished.params, "train")[root.prompt_id].answer
    for shown in (root.observation, f'"gold":"{gold}"', '"stop":"answered"', '"pieces":["'):
        assert shown in page
    assert re.findall(r"src=|https?://(?!www\.w3\.org/2000/svg)", page) == []


def test_summary_ranks_the_policy_after_the_last_update_as_well(finished, tmp_path):
    run = Run(shutil.copytree(finished.path, tmp_path / "r"))
    for accuracy, best in ((1.0, [2, 1.0]), (None, [1, run.metrics()[1]["eval/accuracy"]])):
        write_json(run.iteration(2) / "evaluation.json", {"accuracy": accuracy})
        summary = write_summary(run)
        assert (summary["accuracy/best"], run.manifest["best"]) == (best[1], best)
    assert summary["nothing_learnt"] is None


def test_append_writes_one_line(finished, tmp_path):
    before = finished.metrics_path.read_text()
    append_metrics(finished, 1)
    assert finished.metrics_path.read_text() == before + before.splitlines(keepends=True)[-1]
    finished.metrics_path.write_text(before)
