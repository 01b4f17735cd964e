"""A search server of the user's own, on loopback: its form, its faults, and records that replace it."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from components.environments.search.retrieval import Passage, RetrievalError
from components.environments.search.retrieval_http import HttpRetriever, Recorded, is_here
from components.errors import UserError


class Server:
    """Answers POST /retrieve with what `answer` makes of the request; counts requests."""

    def __init__(self) -> None:
        self.requests: list[dict] = []
        self.answer = lambda body: {"result": [self.documents(query, body["topk"]) for query in body["queries"]]}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                answer = outer.answer(body)
                if callable(answer):
                    answer(self)
                    return
                status, content = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
                self.send_response(status)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/retrieve"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @staticmethod
    def documents(query: str, count: int) -> list[dict]:
        return [{"document": {"title": f"{query} {n}", "text": "x"}, "score": 1 / (n + 1)} for n in range(count)]

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    running = Server()
    yield running
    running.close()


def client(server: Server, **settings) -> HttpRetriever:
    return HttpRetriever(server.url, **{"top_k": 2, "timeout": 5.0, "pause": 0.01} | settings)


def test_asks_all_queries_in_one_request_of_the_common_form(server):
    found = client(server).retrieve(["Émile", ""])
    assert server.requests == [{"queries": ["Émile", ""], "topk": 2, "return_scores": True}]
    assert found[0] == [Passage("Émile 0", "x", 1.0), Passage("Émile 1", "x", 0.5)]
    assert len(found[1]) == 2
    assert client(server).retrieve([]) == []
    assert len(server.requests) == 1


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "nonsense", "http://[::1"])
def test_no_proxy_stands_before_a_server_on_this_machine(server, monkeypatch, proxy):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert len(client(server).retrieve(["q"])[0]) == 2
    with pytest.raises(RetrievalError):  # others are asked as the environment says
        HttpRetriever("http://search.invalid/retrieve", retries=0, timeout=5.0).retrieve(["q"])


@pytest.mark.parametrize(
    ("url", "here"),
    [("http://127.0.0.1:8000/retrieve", True), ("http://localhost/x", True), ("https://[::1]:9/", True),
     ("http://0.0.0.0:9/", True), ("http://127.8.8.8/", True), ("http://a.localhost:1/", True),
     ("http://u:p@localhost:1/", True), ("http://10.0.0.1/", False), ("http://localhost.example/", False),
     ("http://example.org/localhost", False), ("http://[::1", False), ("no URL", False)],
)  # fmt: skip
def test_which_servers_are_on_this_machine(url, here):
    assert is_here(url) == here


@pytest.mark.parametrize(
    ("documents", "passages"),
    [
        ([{"document": {"id": 1, "contents": '"A title"\nA text.\nMore.'}, "score": "0.5"}],
         [Passage("A title", "A text.\nMore.", 0.5)]),
        ([{"id": 1, "contents": "only text"}], [Passage("", "only text")]),
        ([{"title": "a", "text": "b", "contents": "c"}], [Passage("a", "b")]),
        ([], []),
        ([{"document": {"text": str(n)}, "score": n} for n in range(9)],
         [Passage("", "0", 0.0), Passage("", "1", 1.0)]),
    ],
)  # fmt: skip
def test_forms_of_documents(server, documents, passages):
    server.answer = lambda body: {"result": [documents]}
    assert client(server).retrieve(["q"]) == [passages]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, b"<html>"), "no JSON"),
        ((200, b"\xff\xfe"), "no JSON"),
        ((200, b"[" * 10**5), "no JSON"),
        ({"result": []}, "a list for each of 1 queries"),
        ({"result": [[], []]}, "a list for each of 1 queries"),
        ({"result": "none"}, "a list for each of 1 queries"),
        ([[]], "a list for each of 1 queries"),
        ({"result": [["text"]]}, "a document without text"),
        ({"result": [[{"document": {"title": "a"}, "score": 1}]]}, "a document without text"),
        ({"result": [[{"document": {"text": "a"}, "score": "high"}]]}, "a document without text"),
        ((404, b""), "status 404"),
        ((422, b""), "status 422"),
        ((503, b""), "status 503"),
    ],
)
def test_unusable_answer_is_an_error_never_an_empty_result(server, answer, message):
    server.answer = lambda body: answer
    with pytest.raises(RetrievalError, match=message):
        client(server, retries=1).retrieve(["q"])
    assert len(server.requests) == (2 if "503" in message else 1)  # only a server's own fault is worth another attempt


def test_fault_that_passes_is_retried(server):
    good = server.answer
    server.answer = lambda body: good(body) if len(server.requests) > 2 else (500, b"")
    assert len(client(server).retrieve(["q"])[0]) == 2


def silent(handler) -> None:
    time.sleep(3)


def dripping(handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(60):
        try:
            handler.wfile.write(b" ")
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.05)


@pytest.mark.parametrize("answer", [silent, dripping])
def test_time_out_holds_for_the_whole_request(server, answer):
    server.answer = lambda body: answer
    start = time.monotonic()
    with pytest.raises(RetrievalError, match=r"no answer within 0.3 s for 1 queries, the first 'slow one'"):
        client(server, timeout=0.3, retries=1).retrieve(["slow one"])
    assert time.monotonic() - start < 2.0


def test_server_that_is_away_is_an_error(server):
    away = client(server, retries=0)
    server.close()
    with pytest.raises(RetrievalError, match=r"/retrieve: .+ for 1 queries"):
        away.retrieve(["q"])
    with pytest.raises(RetrievalError):
        HttpRetriever("nonsense://x", retries=0).retrieve(["q"])


def test_second_run_with_the_server_away_sees_the_same(server, tmp_path):
    """Records hold queries of every kind, in any order and any batch."""
    record, queries = tmp_path / "runs" / "searches.sqlite", ["Émile", "", "\ud800\x00", "x" * 10**5]
    server.answer = lambda body: {"result": [server.documents(f"{len(server.requests)}", 2) for _ in body["queries"]]}

    class Plain:  # the client's text must be valid; the environment sees to that
        def retrieve(self, asked):
            return client(server).retrieve([f"query {number}" for number, _ in enumerate(asked)])

    first = Recorded(record, {"top_k": 2}, Plain()).retrieve([*queries, queries[0]])
    assert first[0] == first[4]
    server.close()
    asked = len(server.requests)
    again = Recorded(record, {"top_k": 2}, client(server, retries=0)).retrieve([*queries, queries[0]])
    assert again == first
    assert [Recorded(record, {"top_k": 2}).retrieve([q])[0] for q in reversed(queries)] == first[3::-1]
    assert len(server.requests) == asked


def test_miss_is_an_error_when_nobody_can_be_asked(server, tmp_path):
    record = tmp_path / "searches.sqlite"
    Recorded(record, {"top_k": 2}, client(server)).retrieve(["known"])
    server.close()
    with pytest.raises(RetrievalError, match="for 1 queries, the first 'unknown'"):
        Recorded(record, {"top_k": 2}, client(server, retries=0)).retrieve(["known", "unknown"])
    with pytest.raises(RetrievalError, match="no record of 'unknown' under"):
        Recorded(record, {"top_k": 2}).retrieve(["unknown"])
    with pytest.raises(RetrievalError, match="no record of 'known' under"):
        Recorded(record, {"top_k": 5}).retrieve(["known"])  # other settings, other answers


def test_nothing_found_is_recorded_as_nothing_found(server, tmp_path):
    server.answer = lambda body: {"result": [[]]}
    record = tmp_path / "searches.sqlite"
    assert Recorded(record, {}, client(server)).retrieve(["q"]) == [[]]
    assert Recorded(record, {}).retrieve(["q"]) == [[]]


def test_first_answer_stays_the_answer_for_all_who_share_the_record(server, tmp_path):
    record = tmp_path / "searches.sqlite"

    class Racing:
        """Asks a server whose index changed, while another process records the old answer."""

        def retrieve(self, queries):
            Recorded(record, {}, client(server)).retrieve(queries)
            return [[Passage("changed", "x")] for _ in queries]

    found = Recorded(record, {}, Racing()).retrieve(["q"])
    assert found == Recorded(record, {}).retrieve(["q"])
    assert found[0][0].title == "q 0"


def test_threads_share_a_record(server, tmp_path):
    recorded, answers = Recorded(tmp_path / "searches.sqlite", {}, client(server)), {}

    def ask(number: int) -> None:
        answers[number] = recorded.retrieve([f"q{number % 3}", f"own {number}"])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert {n: found[1][0].title for n, found in answers.items()} == {n: f"own {n} 0" for n in range(8)}


def test_damaged_or_missing_record_is_one_clear_error(tmp_path):
    path = tmp_path / "searches.sqlite"
    with pytest.raises(UserError, match="no such record of searches, and no server to ask"):
        Recorded(path, {})
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(UserError, match="not a record of searches"):
        Recorded(path, {})


def test_record_is_plain_sqlite(server, tmp_path):
    path = tmp_path / "searches.sqlite"
    Recorded(path, {"top_k": 2}, client(server)).retrieve(["a 'quoted' query; DROP TABLE answers"])
    with sqlite3.connect(path) as base:
        assert base.execute("SELECT count(*) FROM answers").fetchone() == (1,)
