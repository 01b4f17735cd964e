"""Tasks under the settings of each of the project's own: with a module as input, and submitted 200 times."""

import importlib
import pkgutil
import sys
import threading

import torch
from prefect import Task, flow, task

import tasks

names = [f"tasks.{one.name}" for one in pkgutil.iter_modules(tasks.__path__)] + ["flows.shards"]
ours = {id(t): t for name in names for t in vars(importlib.import_module(name)).values() if isinstance(t, Task)}
model = torch.nn.Linear(2, 2)
model.lock = threading.Lock()  # which no cache key can be made of


def show(what: object) -> str:
    return repr(what)


@flow(name="many")
def many() -> bool:
    for each in ours.values():
        like_it = task(show, name=each.name, cache_policy=each.cache_policy, persist_result=each.persist_result)
        assert like_it(model) == repr(model)
    futures = [like_it.submit(number) for number in range(200)]
    return [future.result() for future in futures] == [str(number) for number in range(200)]


task(show)(model)  # with Prefect's own settings, for comparison
print("control done", file=sys.stderr, flush=True)
print(len(ours), many())
