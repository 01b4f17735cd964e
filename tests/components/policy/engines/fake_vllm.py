"""A server that answers as vLLM does, with a prefix cache that goes stale unless it is dropped."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # many connections are opened at once


@dataclass
class FakeVllm:
    """Its "weights" are the folder that it loaded last; the first sampled token depends on them alone."""

    settings: dict[str, Any] = field(
        default_factory=lambda: {
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "enable_prefix_caching": True,
            "max_model_len": 128,
        }
    )
    failing: bool = False  # answers 500 to everything
    drops_cache: bool = True
    spoilt: dict[str, Any] | None = None  # answered to every request for tokens

    def __post_init__(self) -> None:
        self.weights, self.key = "", ""
        self.cache: dict[tuple[int, ...], str] = {}
        self.generated: list[dict[str, Any]] = []
        self.loads: list[str] = []
        self.start(0)

    def start(self, port: int) -> None:
        self.http = _Http(("127.0.0.1", port), _handler(self))
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def kill(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def restart(self) -> None:
        """At the same address, with the weights of its start."""
        self.weights, self.key, self.cache = "", "", {}
        self.start(int(self.url.rpartition(":")[2]))

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/health":
            return {}
        if path.startswith("/reset_prefix_cache"):
            if self.drops_cache:
                self.cache.clear()
            return {"success": self.drops_cache}
        if path == "/collective_rpc":
            return {"results": [getattr(self, f"_{body['method']}")(*body["args"])]}
        self.generated.append(body)
        if self.spoilt:
            return self.spoilt
        ids = tuple(body["token_ids"])
        known = ids in self.cache
        weights = self.cache.setdefault(ids, self.weights)  # a hit is computed with what it was computed with
        sampled = [sum(weights.encode()) % 97, body["sampling_params"]["seed"] % 89]
        sampled = sampled[: body["sampling_params"]["max_tokens"]]
        return {
            "choices": [
                {
                    "token_ids": sampled,
                    "finish_reason": "stop",
                    "logprobs": {"content": [{"token_id": t, "logprob": -0.5} for t in sampled]},
                }
            ],
            "usage": {
                "prompt_tokens": len(ids),
                "prompt_tokens_details": {"cached_tokens": len(ids) - 1} if known else None,
            },
        }

    def _describe(self) -> dict[str, Any]:
        return {"policy": self.key, **self.settings}

    def _load_policy(self, path: str) -> None:
        self.weights, self.key = path, ""
        self.loads.append(path)

    def _name_policy(self, key: str) -> None:
        self.key = key


def _handler(server: FakeVllm) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}"))

        def _reply(self, body: dict[str, Any]) -> None:
            content = b"{}" if server.failing else json.dumps(server.answer(self.path, body)).encode()
            self.send_response(500 if server.failing else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    return Handler
