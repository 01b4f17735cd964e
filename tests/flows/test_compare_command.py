"""`trace compare` on runs as they lie on disk."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from components.params.root import compose
from components.storage import read_json, write_json, write_parquet, write_sealed, write_text
from components.tree.schema import Node, Origin, nodes_to_table
from flows.cli import app
from tasks.compare import read_curves
from tasks.run import find_run


def a_run(folder: Path, arm: str, seed: int, accuracy: list[float], name: str | None = None, **allocation) -> None:
    """Two iterations, and the evaluation after the last."""
    name = name or f"{arm}-s{seed}"
    params = compose({"run": {"seed": seed, "iterations": 2}, "allocation": {"arm": arm, **allocation}})
    write_text(folder / name / "params.yaml", yaml.safe_dump(params.model_dump()))
    write_sealed(folder / name / "manifest.json", {"run_id": name, "mlflow_run_id": None})
    lines = [
        {"iteration": k, "eval/accuracy": a, "budget/units": 256.0, "tokens/generated": 1000.0, "time/iteration": 2.0}
        | {f"effective_ratio/{kind}": 0.5 for kind in ("prompts", "leaves", "at_4_leaves")}
        for k, a in enumerate(accuracy[:2])
    ]
    write_text(folder / name / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write_json(folder / name / "iterations/0002/evaluation.json", {"accuracy": accuracy[2]})


def compare(folder: Path, *arguments: str):
    return CliRunner().invoke(
        app, ["compare", *arguments, "--runs-dir", str(folder), "--output", str(folder / "out")], env={"COLUMNS": "160"}
    )


def test_tables_and_figures_of_arms_and_seeds(tmp_path):
    for seed in (0, 1):
        a_run(tmp_path, "grpo", seed, [0.1, 0.2, 0.3])
        a_run(tmp_path, "trace", seed, [0.1, 0.3, 0.5 + seed / 10])
    done = compare(tmp_path, "grpo-*", "trace-*")
    assert done.exit_code == 0, done.output
    assert "+0.250" in done.output  # (0.2 + 0.3) / 2
    rows = read_json(tmp_path / "out/summary.json")
    trace = next(row for row in rows if row["arm"] == "trace")
    assert (trace["units"], trace["tokens"], trace["seeds"]) == (512.0, 2000.0, 2)
    assert trace["effective_ratio"] == 0.5
    assert trace["cost_units"] == pytest.approx(256.0)  # grpo's 0.3
    for figure in ("accuracy", "effective_ratio", "predictor", "budget", "time"):
        assert (tmp_path / f"out/{figure}.svg").read_text().startswith("<?xml")
    headline = read_json(tmp_path / "out/metrics.json")["multihop"]["all"]
    assert headline["trace"] == {
        "accuracy_at_units": pytest.approx(0.55),
        "accuracy_at_units_gain": pytest.approx(0.25),
        "effective_ratio": 0.5,
    }
    assert set(headline["grpo"]) == {"accuracy_at_units", "effective_ratio"}
    with (tmp_path / "out/curves.csv").open() as stream:
        assert [row["accuracy"] for row in csv.DictReader(stream)][-3:] == ["0.1", "0.3", "0.6"]
    with (tmp_path / "out/comparison.csv").open() as stream:
        assert [row["arm"] for row in csv.DictReader(stream)] == ["grpo", "trace"]


def test_rollouts_are_counted_once_by_the_turn_that_they_start_from(tmp_path):
    """Two factual rollouts of two turns each, and a continuation of two turns from the first one's first turn."""
    a_run(tmp_path, "trace", 0, [0.1, 0.2, 0.3])
    rows = [(0, -1, -1, 0), (1, 0, 0, 1), (2, 1, 0, 2), (3, 0, 0, 1), (4, 3, 0, 2), (5, 1, 1, 2), (6, 5, 1, 3)]
    nodes = [
        Node(0, "p", node, parent, turn, Origin.ROOT if parent < 0 else Origin.FACTUAL, anchor)
        for node, parent, anchor, turn in rows
    ]
    write_parquet(tmp_path / "trace-s0/iterations/0001/forest.parquet", nodes_to_table(nodes))
    (curve,) = read_curves([find_run("trace-s0", tmp_path)])
    assert curve.depths.tolist() == [2, 1]


def test_runs_with_other_parameters_are_another_setting_named_by_them(tmp_path):
    a_run(tmp_path, "grpo", 0, [0.1, 0.2, 0.3])
    a_run(tmp_path, "grpo", 0, [0.1, 0.2, 0.4], name="deep", continuations=6)
    compare(tmp_path, "grpo-s0", "deep")
    settings = [row["setting"] for row in read_json(tmp_path / "out/summary.json")]
    assert settings == ["allocation.continuations=2", "allocation.continuations=6"]


def test_a_label_names_a_setting_whatever_its_parameters(tmp_path):
    a_run(tmp_path, "grpo", 0, [0.1, 0.2, 0.3], name="easy-grpo")
    a_run(tmp_path, "grpo", 0, [0.0, 0.1, 0.2], name="deep-grpo", continuations=6)
    assert compare(tmp_path, "shallow=easy-*", "deep=deep-*").exit_code == 0
    rows = read_json(tmp_path / "out/summary.json")
    assert [(row["task"], row["setting"]) for row in rows] == [("multihop", "shallow"), ("multihop", "deep")]


def test_the_same_cell_twice_is_refused_not_averaged(tmp_path):
    a_run(tmp_path, "grpo", 0, [0.1, 0.2, 0.3])
    a_run(tmp_path, "grpo", 0, [0.1, 0.2, 0.3], name="again")
    assert "both are arm grpo, seed 0" in str(compare(tmp_path, "grpo-s0", "again").exception)


def test_comparison_becomes_the_parent_of_the_runs_in_mlflow(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_tracking_uri(uri)
    client = mlflow.MlflowClient(uri)
    a_run(tmp_path, "grpo", 0, [0.1, 0.2, 0.3])
    experiment = client.create_experiment("trace", artifact_location=(tmp_path / "artifacts").as_uri())
    child = client.create_run(experiment).info.run_id
    write_sealed(tmp_path / "grpo-s0/manifest.json", {"run_id": "grpo-s0", "mlflow_run_id": child})
    done = compare(tmp_path, "grpo-s0", "--mlflow")
    mlflow.set_tracking_uri("")
    assert done.exit_code == 0, done.output
    parent = client.get_run(child).data.tags["mlflow.parentRunId"]
    assert client.get_run(parent).data.metrics["multihop/grpo/accuracy_at_units"] == 0.3
    assert {a.path for a in client.list_artifacts(parent)} >= {"comparison.md", "accuracy.svg"}
