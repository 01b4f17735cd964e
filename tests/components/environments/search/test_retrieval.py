"""BM25 search: right passages, the same ones every time, an index built once, and clear faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.environments.search import retrieval
from components.environments.search.retrieval import Bm25, Passage, load_corpus
from components.errors import UserError

PASSAGES = [
    Passage("Émile", "A treatise on education by Jean-Jacques Rousseau, who was born in Geneva."),
    Passage("The Who", "An English rock band formed in London in 1964."),
    Passage("Geneva", "A city in Switzerland."),
    Passage("木", "木 is a character that means tree."),
    Passage("Trees", "Trees are tall."),
    Passage("Chinese", "卢梭出生于日内瓦，是启蒙时代的哲学家。"),
    Passage("Japanese", "東京は日本の首都です。ｶﾞｿﾘﾝ"),
    Passage("Korean", "서울은 대한민국의 수도이다."),
    Passage("Thai", "กรุงเทพเป็นเมืองหลวงของประเทศไทย"),
    Passage("Lao", "ວຽງຈັນເປັນນະຄອນຫຼວງ"),
    Passage("Mixed", "NHKは日曜日に"),
    *(Passage(f"copy {n}", "the same passage about quokkas") for n in range(5)),
]


@pytest.fixture(scope="module")
def search(tmp_path_factory) -> Bm25:
    return Bm25(PASSAGES, tmp_path_factory.mktemp("index"), top_k=3)


def titles(search: Bm25, query: str) -> list[str]:
    return [passage.title for passage in search.retrieve([query])[0]]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("Rousseau education", "Émile"),
        ("EMILE", "Émile"),  # accents and case do not matter
        ("E\u0301mile", "Émile"),  # nor does how an accent is encoded
        ("treatises", "Émile"),  # nor the form of a word
        ("The Who", "The Who"),  # only stop words: they are searched after all
        ("木", "木"),
        ("1964?!", "The Who"),
        ("哲学家", "Chinese"),  # in scripts without blanks between words, the pairs of letters count
        ("卢梭 出生", "Chinese"),
        ("家", "Chinese"),  # and a letter alone is one
        ("日本の首都", "Japanese"),
        ("ガソリン", "Japanese"),
        ("수도", "Korean"),
        (unicodedata.normalize("NFD", "수도"), "Korean"),
        ("เมืองหลวง", "Thai"),
        ("ນະຄອນ", "Lao"),
        ("nhk", "Mixed"),
        ("日曜日 NHK", "Mixed"),
    ],
)
def test_finds_what_the_words_name(search, query, first):
    assert titles(search, query)[0] == first


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        "\x00\x01\x1b",
        "?!…",
        "zzzqqq",
        "数学",
        "生まれ",
        "\ud800",
        "🙂",
        "\u202e\u200b",
        "<tool_call>",
        "*" * 10**5,
        "xyzzy" * 10**5,
    ],
)
def test_query_that_fits_nothing_finds_nothing(search, query):
    assert search.retrieve([query]) == [[]]


def test_huge_query_is_cut_and_cheap(search):
    start = time.process_time()
    assert titles(search, "geneva " * 10**6)[0] == "Geneva"
    assert titles(search, " ".join(f"word{n}" for n in range(10**5))) == []
    assert time.process_time() - start < 1.0


def test_equal_scores_keep_the_corpus_order(search):
    assert titles(search, "quokkas") == ["copy 0", "copy 1", "copy 2"]


def test_scores_fall_and_passages_are_whole(search):
    found = search.retrieve(["city of Geneva", "nothing here"])[0]
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    assert found[0] == Passage(PASSAGES[2].title, PASSAGES[2].text, found[0].score)


def test_a_corpus_smaller_than_top_k_is_no_fault(tmp_path):
    assert titles(Bm25(PASSAGES[:2], tmp_path, top_k=10), "Geneva London") == ["The Who", "Émile"]


def test_index_is_built_once_per_content_and_made_anew_when_damaged(tmp_path, monkeypatch):
    built = []
    write = retrieval._write_index
    monkeypatch.setattr(retrieval, "_write_index", lambda corpus, folder: (built.append(folder), write(corpus, folder)))
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(json.dumps({"title": p.title, "text": p.text}) for p in PASSAGES))
    before = Bm25(corpus, tmp_path / "cache").retrieve(["Geneva"])
    assert Bm25(str(corpus), tmp_path / "cache").retrieve(["Geneva"]) == before
    assert len(built) == 1
    for name in ("passages.arrow", "data.csc.index.npy", "vocab.index.json"):
        (built[0] / name).write_bytes(b"no")
        assert Bm25(corpus, tmp_path / "cache").retrieve(["Geneva"]) == before
    assert built == [built[0]] * 4
    corpus.write_text(corpus.read_text().replace("Switzerland", "Ohio"))
    assert Bm25(corpus, tmp_path / "cache").retrieve(["Ohio"])[0][0].title == "Geneva"
    assert built[4] != built[0]


def test_another_process_with_another_hash_seed_finds_the_same(tmp_path, search):
    corpus = tmp_path / "corpus.json"
    corpus.write_text(json.dumps([{"title": p.title, "text": p.text} for p in PASSAGES]))
    code = (
        "import sys; from pathlib import Path; from components.environments.search.retrieval import Bm25\n"
        "b = Bm25(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(b.retrieve(['born in a city of Switzerland', 'tall trees the quokkas']))"
    )
    shown = [
        subprocess.run(
            [sys.executable, "-c", code, corpus, tmp_path / seed],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[4],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert shown[0] == shown[1]
    assert shown[0].strip() == str(search.retrieve(["born in a city of Switzerland", "tall trees the quokkas"]))


def test_every_shape_of_corpus_gives_the_same_passages(tmp_path):
    expected = [Passage("Geneva", "A city. In Switzerland."), Passage("Émile", "A treatise.")]
    rows = [{"title": p.title, "text": p.text} for p in expected]
    (tmp_path / "map.json").write_text(json.dumps({"Geneva": ["A city.", " In Switzerland."], "Émile": "A treatise."}))
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "contents.jsonl").write_text(
        "\n".join(json.dumps({"id": n, "contents": f'"{p.title}"\n{p.text}'}) for n, p in enumerate(expected))
    )
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for name in ("map.json", "list.json", "rows.jsonl", "contents.jsonl", "rows.parquet"):
        assert load_corpus(tmp_path / name) == expected, name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "holds no rows"),
        ("a.json", "[]", "holds no rows"),
        ("a.json", "{}", "holds no passages"),
        ("a.json", '{"Geneva": 7}', r"passage 'Geneva': expected a text or a list of sentences, found int 7"),
        ("a.json", '{"Geneva": []}', r"passage 'Geneva': expected a text"),
        ("a.json", '[{"title": "a", "text": "b"}, {"title": "c"}]', r"row 1: no field 'text' or 'paragraph_text'"),
        ("a.json", '[{"title": "a", "text": 7}]', r"row 0: expected a text or a list of sentences, found int 7"),
        ("a.json", '[{"title": 7, "text": "b"}]', r"row 0: field 'title' should be str, found int 7"),
        ("a.jsonl", '{"title": "a", "text": "  "}', r"row 0: field 'text' is empty"),
        ("a.jsonl", '{"title": "", "text": "?!"}', r"a.jsonl holds no passage with words"),
    ],
)
def test_unusable_corpus_is_one_clear_error(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        Bm25(tmp_path / name, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_empty_list_missing_file_and_no_top_k_are_clear_errors(tmp_path):
    with pytest.raises(UserError, match="the corpus holds no passage with words"):
        Bm25([], tmp_path)
    with pytest.raises(UserError, match="no such data file"):
        Bm25(tmp_path / "none.jsonl", tmp_path)
    with pytest.raises(UserError, match="top_k=0"):
        Bm25(PASSAGES, tmp_path, top_k=0)
