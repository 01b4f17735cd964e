"""One event loop in a thread of its own, for what waits on many servers at once.

Callers stay plain functions and may come from several threads: they hand a coroutine over and wait for its result.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from components.workers.pool import PerProcess

T = TypeVar("T")


def _start() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="event-loop", daemon=True).start()
    return loop


_loop = PerProcess(_start)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in the loop and returns its result; an interrupt of the caller cancels it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop.get())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results, in order; the first failure is raised once the others are cancelled."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
