"""GGUF files as checkpoints, and the small pretrained model in the pipeline's hands."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.environments.search import Search, load_examples
from components.environments.search.questions import load_qa
from components.environments.search.retrieval import Bm25, Passage
from components.errors import UserError
from components.params.load import load_params
from components.policy.engines.base import Request
from components.policy.engines.transformers.engine import TransformersEngine
from components.policy.engines.transformers.params import TransformersParams
from components.policy.from_gguf import from_gguf
from components.policy.renderer import Renderer

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "models" / "SmolLM2-135M"


def test_file_that_is_no_gguf_is_an_error_and_nothing_is_left(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"model\.gguf cannot be read as GGUF"):
        from_gguf(tmp_path / "model.gguf", tmp_path / "out" / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_checkpoint_that_exists_is_not_written_over(tmp_path):
    with pytest.raises(UserError, match="exists already"):
        from_gguf(tmp_path / "model.gguf", tmp_path)


@pytest.mark.skipif(not MODEL.exists(), reason="models/SmolLM2-135M is absent: make smollm2")
def test_small_pretrained_model_knows_a_capital_and_ends_its_turn(tmp_path):
    """Its weights, tokenizer, template and end token belong together; the temperature is low, so it hardly guesses."""
    settings = load_params(ROOT / "params" / "smollm2-135m.yaml")
    engine, renderer = TransformersEngine(TransformersParams(temperature=0.05)), Renderer.load(MODEL)
    engine.load(MODEL)
    environment = Search(
        Bm25([Passage("title", "text")], tmp_path),
        react=True,
        examples=load_examples(str(ROOT / settings.environment.examples)),
    )
    question = load_qa(ROOT / "data" / "capitals" / "questions.jsonl")[0]
    ids = renderer.prompt_ids(environment.chat(question))
    assert len(ids) + settings.engine.max_turn_tokens < settings.engine.max_tokens
    (said,) = engine.generate([Request(ids, 0, 16)])
    assert said.stopped
    assert "Paris" in renderer.decode(said.token_ids)
