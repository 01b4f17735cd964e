"""`vllm`: sampling by vLLM's servers, or inside the process."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from components.errors import UserError
from components.policy.engines.base import Engine, EngineLayout, EngineParams
from components.policy.engines.vllm.params import VllmParams

if TYPE_CHECKING:
    from components.params import root

LEAST_TEMPERATURE = 0.01  # vLLM raises what is below to this value
HIDDEN = 128  # its attention on the CPU has no heads of fewer than 32 units, and the tiny policy has four


class Vllm(Engine):
    """vLLM: its servers, started by the run or running already, or inside the process."""

    name = "vllm"
    Params: ClassVar[type[EngineParams]] = VllmParams

    @classmethod
    def make(cls, params: VllmParams) -> Engine:
        if params.servers == 0:
            from components.policy.engines.vllm.colocated import ColocatedVllmEngine

            return ColocatedVllmEngine(params)
        from components.policy.engines.vllm.engine import VllmEngine

        return VllmEngine(params)

    @classmethod
    def layout(cls, params: VllmParams) -> EngineLayout:
        ours = isinstance(params.servers, int)  # the others' servers take no memory here
        return EngineLayout(
            on_gpu=True,
            servers=max(1, params.servers) if isinstance(params.servers, int) else len(params.servers),
            tensor_parallel=params.tensor_parallel,
            held_share=params.gpu_memory if ours else 0.0,
            number_bytes=4 if params.dtype == "float32" else 2,
            cache_bytes=None,
            keys={"gpus": "engine.servers × engine.tensor_parallel", "held": "engine.gpu_memory",
                  "weights": "engine.gpu_memory or engine.tensor_parallel"},
        )  # fmt: skip

    @classmethod
    def check(cls, params: root.Params) -> None:
        settings = params.engine
        assert isinstance(settings, VllmParams)
        if params.policy.path is None and params.policy.hidden % HIDDEN:
            raise UserError(
                f"policy.hidden={params.policy.hidden}: vLLM needs a multiple of {HIDDEN} in the tiny policy"
            )
        if settings.temperature < LEAST_TEMPERATURE:
            raise UserError(f"engine.temperature={settings.temperature}: vLLM samples at {LEAST_TEMPERATURE} or above")
        if isinstance(settings.servers, tuple):
            _check_urls(settings.servers)
        elif settings.servers and not os.access(settings.python, os.X_OK):
            raise UserError(
                f"engine.python={settings.python!r} is no interpreter; set up vLLM with: make vllm (or name its "
                "interpreter, or running servers in engine.servers)"
            )
        elif not settings.servers and find_spec("vllm") is None:
            raise UserError("engine.servers=0 samples inside this process, where vLLM cannot be imported; use 1")


def _check_urls(urls: tuple[str, ...]) -> None:
    import httpx

    for url in urls:
        try:
            httpx.get(f"{url.rstrip('/')}/health", timeout=10, trust_env=False).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"engine.servers: {url} does not answer ({error}); start it, or leave it out") from None
