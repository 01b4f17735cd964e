"""Processes that can be killed, for verifiers that may hang and for code that is hostile.

`pool.Workers` is the caller's side. It starts a helper process (`server`) that imports a function once and forks a
child to run it: a child that hangs costs one kill and one fork, never an import. What runs in the helper imports
little, so that forking stays cheap: `grade_math`, `grade_calls` and `run_python` hold functions, `confine` takes
rights from a child.
"""
