"""Several vLLM servers behind one client: who is asked, who takes over, and who holds which weights.

All of it runs in one event loop (`components.policy.loop`), so its state needs no locks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from components.errors import UserError

T = TypeVar("T")
logger = logging.getLogger("trace")
logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every request
ATTEMPTS = 5  # of one request, at any servers
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0  # seconds between attempts to reach a server again
START = "components.policy.engines.vllm.server"
NEEDED = {"logprobs_mode": "processed_logprobs", "enable_prefix_caching": True}


class ServerError(Exception):
    """A server that cannot be reached, fails, or answers nonsense."""


class Server:
    """One server.

    Args:
        url: Its base URL.
        connections: Requests that may be on the way to it.
        timeout: Seconds that one request may take.
        ended: Says why its process has ended, None while it lives or where it is not ours.
    """

    def __init__(
        self, url: str, connections: int, timeout: float, ended: Callable[[], str | None] = lambda: None
    ) -> None:
        self.url, self.ended = url.rstrip("/"), ended
        self.ready = False  # it holds the weights that are asked for, and no cache of others
        self.fault = ""
        self.taking = asyncio.Lock()
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout, connect=10.0, pool=None),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=False,
        )

    async def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer.

        Raises:
            ServerError: if there is none.
            UserError: if the server refuses the request (4xx); the message holds its reason.
        """
        try:
            answer = await self._client.post(self.url + path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise ServerError(str(error) or type(error).__name__) from error
        if 400 <= answer.status_code < 500:
            raise UserError(f"the vLLM server {self.url} refuses {path} ({answer.status_code}): {answer.text[:300]}")
        if answer.status_code != 200:
            raise ServerError(f"status {answer.status_code}: {answer.text[:300]}")
        try:
            return answer.json()
        except ValueError as error:
            raise ServerError(f"no JSON: {answer.text[:100]}") from error

    async def call(self, method: str, *arguments: str) -> Any:
        """What the first worker returns from a method of `server.WorkerExtension`."""
        answer = await self.post("/collective_rpc", {"method": method, "args": arguments})
        try:
            return answer["results"][0]
        except (LookupError, TypeError) as error:
            raise ServerError(f"no result of {method}: {str(answer)[:100]}") from error

    async def take(self, path: str, key: str, max_tokens: int) -> None:
        """Makes the server hold the weights in `path`, unless it holds `key` already, and no cache of earlier ones."""
        try:
            found = await self.call("describe")
        except UserError as error:
            raise UserError(f"{self.url} was not started by {START}, so its weights cannot be exchanged") from error
        shown = {name: found[name] for name in ("logprobs_mode", "enable_prefix_caching", "max_model_len")}
        if not (shown == NEEDED | {"max_model_len": found["max_model_len"]} and found["max_model_len"] >= max_tokens):
            needed = NEEDED | {"max_model_len": max_tokens}
            raise UserError(f"the vLLM server {self.url} has {shown} and needs {needed}; start it by {START}")
        if found["policy"] != key:
            self.ready = False
            await self.call("load_policy", path)
            if not (await self.post("/reset_prefix_cache?reset_running_requests=true"))["success"]:
                raise ServerError("its prefix cache could not be dropped, so it holds keys of earlier weights")
            await self.call("name_policy", key)
            logger.info("the vLLM server %s took %s; it has %s", self.url, path, shown)
        self.ready = True


class Pool:
    """The servers.

    Args:
        servers: At least one.
        patience: Seconds to wait for a server to come back where none is left.
    """

    def __init__(self, servers: list[Server], patience: float) -> None:
        self.servers, self.patience = servers, patience
        self._weights = ("", "", 0)
        self._recoveries: dict[Server, asyncio.Task[None]] = {}

    async def load(self, path: str, key: str, max_tokens: int) -> None:
        """Makes every server hold these weights; one that fails is left out until it answers again.

        Raises:
            UserError: if none does, or one has other settings than training needs.
        """
        self._weights = (path, key, max_tokens)
        results = await asyncio.gather(*map(self._take, self.servers), return_exceptions=True)
        for server, result in zip(self.servers, results, strict=True):
            if isinstance(result, ServerError):
                self._leave_out(server, result)
            elif isinstance(result, BaseException):
                raise result
        await self._pick(0)

    async def post(self, path: str, body: dict[str, Any], tree: int, parse: Callable[[Any], T]) -> T:
        """Asks the server of the tree; another one where it fails, or where `parse` finds its answer not whole.

        Raises:
            UserError: if no server is left, or the request failed wherever it was asked.
        """
        for attempt in range(ATTEMPTS):
            server = await self._pick(tree)
            try:
                return parse(await server.post(path, body))
            except (ServerError, LookupError, TypeError, ValueError) as error:
                self._leave_out(server, error)
                logger.info("attempt %d of a request failed at %s: %s", attempt + 1, server.url, error)
        raise UserError(f"{ATTEMPTS} attempts of one request failed; {self._faults()}")

    async def _pick(self, tree: int) -> Server:
        """The same server for all requests of a tree, as long as the same servers are ready."""
        deadline = time.monotonic() + self.patience
        while not (ready := [server for server in self.servers if server.ready]):
            if all(server.ended() for server in self.servers):
                raise UserError(f"no vLLM server is left; {self._faults()}")
            if time.monotonic() > deadline:
                raise UserError(f"no vLLM server has answered for {self.patience:g} s; {self._faults()}")
            await asyncio.sleep(0.05)
        return ready[tree % len(ready)]

    def _faults(self) -> str:
        return "; ".join(f"{server.url}: {server.ended() or server.fault}" for server in self.servers)

    async def _take(self, server: Server) -> None:
        async with server.taking:
            await server.take(*self._weights)

    def _leave_out(self, server: Server, error: Exception) -> None:
        """Asks no more of a server until it answers again and holds the weights."""
        server.ready, server.fault = False, str(error)
        if server not in self._recoveries:
            logger.warning("the vLLM server %s is left out for now: %s", server.url, server.fault)
            self._recoveries[server] = asyncio.ensure_future(self._recover(server))

    async def _recover(self, server: Server) -> None:
        pause = FIRST_PAUSE
        while not server.ready and not server.ended():
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                await self._take(server)
                logger.warning("the vLLM server %s is back", server.url)
            except (ServerError, UserError) as error:
                server.fault = str(error)
        del self._recoveries[server]
