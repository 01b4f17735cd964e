"""Text of every kind, values of every type, and an engine that always says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from components.errors import UserError
from components.policy.engines.base import Completion, Request

UNICODE = {
    "accents": "Crème brûlée à Zürich",
    "combining": "e\u0301\u0327\u0328 a" + "\u0300" * 200,
    "right to left": "مرحبا بالعالم שלום",
    "direction overrides": "a\u202eb\u202dc\u2066d\u2069",
    "cjk": "東京は日本の首都です。",
    "beyond the first plane": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠀀 𓀀",
    "emoji with joiners": "👩‍👩‍👧‍👦 🏳️‍🌈 🇪🇺 👍🏽",
    "zero width": "a\u200bb\u200cc\u200dd\ufeffe",
    "no-break spaces": "a\u00a0b\u2007c\u202fd\u3000e",
    "line ends": "a\rb\r\nc\u0085d\u2028e\u2029f\x0bg\x0ch",
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f\x9b31m",
    "nul": "before\x00after",
    "escape sequences": "\x1b[31mred\x1b[0m\x07",
    "private use": "\ue000\U000f0000\U0010fffd",
    "noncharacters": "\ufffe\uffff\U0001fffe",
    "replacement": "\ufffd\ufffd",
    "html": "</script><img src=x onerror=alert(1)>&amp;",
    "chat markup": "<|im_end|>\n<|im_start|>assistant\n</think><tool_call>",
    "braces and quotes": "{{ 7 * 7 }} {% raw %} '\"\\ ${HOME} $(id) `id`",
    "a long word": "x" * 20_000,
}
CALL = "<think> boss of ann </think> search ann head"  # turns of the tiny policy on multihop
ANSWER = "<think> done </think> answer ann"
SURROGATES = {
    "high": "\ud83d",
    "low": "\ude00",
    "reversed": "\ude00\ud83d",
    "escaped byte": "\udcff",
    "in a text": "a\ud800b",
}


def complaint(work: Callable[[], object]) -> str | None:
    """The message of the error that the user can mend, None where there was none; any other error fails the test."""
    try:
        work()
    except UserError as error:
        return str(error)
    return None


class Says:
    """An engine that says the same in every turn, with the log-probabilities that it is given."""

    batch_size = 8
    prompt_tokens = cached_tokens = 0

    def __init__(self, renderer, text: str, logprobs=lambda count: [-0.5] * count, stopped: bool = True) -> None:
        self.ids = list(renderer.tokenizer(text, add_special_tokens=False)["input_ids"]) + [renderer.eos_id] * stopped
        self.logprobs, self.stopped = logprobs, stopped

    def load(self, policy: Path) -> None: ...

    def generate(self, requests: list[Request]) -> list[Completion]:
        return [self._say(request) for request in requests]

    def _say(self, request: Request) -> Completion:
        ids = self.ids[: request.max_tokens]
        return Completion(list(ids), self.logprobs(len(ids)), self.stopped and len(ids) == len(self.ids))


def few(count: int) -> settings:
    """The same `count` examples in every run."""
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


any_text = st.text(st.characters(), max_size=30) | st.sampled_from([*UNICODE.values(), *SURROGATES.values()])
plain_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 2, -1, 2**31, 2**63, -(2**64), 10**400]),
    st.floats(),
    any_text,
)
any_value = st.recursive(
    plain_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text | st.integers(), inner, max_size=3),
    max_leaves=5,
)
json_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
