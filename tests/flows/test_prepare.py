"""`trace prepare` as a command: what it writes and says, and one clear line for what cannot be read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from components.environments.dataset import load_prompts
from components.storage import read_json
from flows import cli, services


@pytest.fixture
def trace(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder; returns exit code, output and error output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(services, "environment", lambda folder: {})  # nothing is started, so nothing need be set
    (tmp_path / "params.yaml").write_text(
        "environment: {train_prompts: 20, val_prompts: 4, test_prompts: 4}\nallocation: {pool: 20}\n"
    )

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["trace", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def problems(count: int) -> list[dict]:
    return [{"problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(count)]


@pytest.mark.parametrize("task", ["multihop", "calculator", "devices"])
def test_built_in_task_is_written_with_a_card(trace, tmp_path, task):
    code, out, err = trace("prepare", task, "--set", "environment.max_turns=9")  # devices takes two a change
    assert (code, err) == (0, "")
    (folder,) = (tmp_path / "data" / task).iterdir()
    card = read_json(folder / "card.json")
    line = "20 train, 4 val, 4 test prompts, from built-in generator; hash"
    assert out == f"{folder.relative_to(tmp_path)}: {line} {card['data_hash'][:16]}\n"
    assert [len(load_prompts(folder / f"{split}.parquet")) for split in ("train", "val", "test")] == [20, 4, 4]
    assert card["task"] == task
    assert card["settings"]["train_prompts"] == 20


def test_data_files_are_cut_into_splits_and_the_card_knows_their_contents(trace, tmp_path):
    write_rows(tmp_path / "a.jsonl", problems(20))
    write_rows(tmp_path / "b.jsonl", problems(30))  # the first 20 again
    assignment = "environment.files={train: [a.jsonl, b.jsonl]}"
    code, out, err = trace("prepare", "math", "--set", assignment)
    assert (code, err) == (0, "")
    assert "20 train, 4 val, 4 test prompts, from a.jsonl, b.jsonl; hash" in out
    (folder,) = (tmp_path / "data" / "math").iterdir()
    assert set(read_json(folder / "card.json")["settings"]["contents"]) == {"a.jsonl", "b.jsonl"}
    write_rows(tmp_path / "b.jsonl", problems(31))
    trace("prepare", "math", "--set", assignment)
    assert len(list((tmp_path / "data" / "math").iterdir())) == 2  # other contents are another data set


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tictactoe"], "environment.name='tictactoe' is not known; choose one of calculator, devices"),
        (["math"], "environment.name=math reads its prompts from data files; name them, e.g. --set"),
        (["math", "FILES", "none.jsonl"], "none.jsonl: no such data file in {cwd}, where relative paths begin"),
        (["search", "FILES", "/none/none.jsonl"], "/none/none.jsonl: no such data file\n"),
        (["math", "FILES", "few.jsonl"], "no prompt is left for the split 'train' of 8"),
        (["math", "FILES", "damaged.jsonl"], "damaged.jsonl, row 1: "),
        (["math", "FILES", "torn.jsonl"], "torn.jsonl, line 2: not valid JSON"),
        (["search", "FILES", "damaged.jsonl"], "damaged.jsonl, row 0: no field 'question'"),
        (["math", "FILES", "hub:owner"], "hub:owner: expected hub:owner/name:split"),
        (["math", "--set", "allocation.pool=21"], "yaml: allocation.pool=21 is larger than environment."),
        (["functions", "--set", "environment.categories=[multi_turn]"], "category 'multi_turn' is not known"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_that_names_it_and_exit_code_2(trace, tmp_path, arguments, message):
    write_rows(tmp_path / "few.jsonl", problems(8))
    write_rows(tmp_path / "damaged.jsonl", [*problems(1), {"problem": "What is 1 + 1?"}])
    (tmp_path / "torn.jsonl").write_text(json.dumps(problems(1)[0]) + '\n{"problem": "Wh')
    if "FILES" in arguments:
        *_, file = arguments
        arguments = [arguments[0], "--set", f"environment.files={{train: ['{file}']}}"]
    code, out, err = trace("prepare", *arguments)
    assert (code, out) == (2, "")
    assert message.replace("{cwd}", str(tmp_path)) in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.glob("data/*/*/card.json"))


def test_hub_names_are_loaded_by_split_and_configuration(trace, tmp_path, monkeypatch):
    asked = []

    class Hub:
        @staticmethod
        def load_dataset(*name, split):
            asked.append((*name, split))
            return [{"question": f"{split}: who is {n}?", "answer": str(n)} for n in range(30)]

    monkeypatch.setitem(sys.modules, "datasets", Hub)
    files = "environment.files={train: [hub:owner/qa:easy:train], test: [hub:owner/qa:validation]}"
    code, out, err = trace("prepare", "search", "--set", files)
    assert (code, err) == (0, "")
    assert "20 train, 4 val, 4 test prompts, from hub:owner/qa:easy:train, hub:owner/qa:validation" in out
    assert asked == [("owner/qa", "easy", "train"), ("owner/qa", "validation")]
    trace("prepare", "search", "--set", files)
    assert len(asked) == 2  # what is on disk is not loaded again


def test_policy_is_warmed_up_once(trace, tmp_path):
    short = ("--set", "policy.warmup.steps=2", "--set", "policy.hidden=16", "--set", "policy.layers=1")
    code, out, _ = trace("warm-up", *short)
    assert code == 0
    weights = tmp_path / out.strip() / "model.safetensors"
    assert weights.parent.parent == tmp_path / "data/warmup/multihop"
    made = weights.stat().st_mtime_ns
    assert trace("warm-up", *short)[1] == out
    assert weights.stat().st_mtime_ns == made


def test_checkpoint_of_ones_own_is_not_warmed_up(trace):
    code, _, err = trace("warm-up", "--set", "policy.path=models/mine")
    assert code == 2
    assert "policy.path=models/mine" in err
