"""Text to token ids and back, by the policy's own chat template.

Only deltas are ever encoded: a prompt once, an observation once, when it is appended. What the policy sampled stays the
ids that it sampled, so a child's ids always start with its parent's. A template may therefore drop the
thoughts of earlier turns (as Qwen3's does): no turn is ever rendered again, only what follows one is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from components.environments.base import Chat
from components.errors import UserError
from components.policy.checkpoint import load_tokenizer

_TURN = "turn-4f1c9a"  # stands for a turn of the policy where the template is asked what follows one


class Renderer:
    """Renders one policy's conversations.

    Args:
        tokenizer: Needs a chat template and an end-of-turn (eos) token.

    Raises:
        UserError: if the template does not end a turn with the end token, or what it puts after a turn depends on the
            turns before, so that token-exact prefixes cannot hold.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.eos_id: int = tokenizer.eos_token_id
        before, end = self._text([("user", "q"), ("assistant", "a")]), tokenizer.eos_token
        if not end or end not in before:
            raise UserError(f"the chat template does not end a turn with the tokenizer's end token ({end!r})")
        self.end: str = end
        self._check_role = lru_cache(self._refuse_dependence)
        self.observation_ids = lru_cache(maxsize=4096)(self._observation_ids)

    @classmethod
    def load(cls, path: Path) -> Renderer:
        try:
            tokenizer = load_tokenizer(path)
            if tokenizer.chat_template is None:
                raise UserError("it has no chat template")
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
            if len(tokenizer) > (size := config.get("vocab_size") or len(tokenizer)):
                raise UserError(f"it has {len(tokenizer)} tokens and config.json vocab_size={size}: another model's")
            stops = config.get("eos_token_id")
            if tokenizer.eos_token_id not in (stops if isinstance(stops, list) else [stops]):
                raise UserError(f"its end token {tokenizer.eos_token_id} is not config.json's eos_token_id={stops}")
            return cls(tokenizer)
        except Exception as error:  # files, JSON and templates fail in kinds of their own
            raise UserError(f"{path} holds no usable tokenizer: {str(error).splitlines()[0]}") from error

    def prompt_ids(self, chat: Chat) -> list[int]:
        """Token ids of the conversation's beginning, up to where the policy's first turn begins."""
        text = self._text(chat.messages, chat.tools, generate=True)
        if chat.tools and text == self._text(chat.messages, generate=True):
            raise UserError("the chat template shows no tools to the policy; describe them in the system prompt")
        return self._encode(text)

    def _observation_ids(self, observation: str, role: str = "tool") -> tuple[int, ...]:
        """Token ids to append after a turn that ended with the end-of-turn token, up to where the next turn begins."""
        self._check_role(role)
        return tuple(self._encode(self._after([("user", "q"), ("assistant", _TURN)], role, observation)))

    def _after(self, messages: list[tuple[str, str]], role: str, observation: str) -> str:
        """What follows the end token of the last of `messages`, a turn that ends in `_TURN`."""
        text = self._text([*messages, (role, observation)], generate=True)
        _, found, rest = text.partition(_TURN)
        rest = rest.lstrip()
        if not found or not rest.startswith(self.end):
            raise UserError("the chat template rewrites earlier turns, so branching at a prefix cannot be token-exact")
        return rest[len(self.end) :]

    def _refuse_dependence(self, role: str) -> None:
        """What is appended must be the same after any turn: with a thought or without, the first or a later one."""
        first, later = [("user", "q")], [("user", "q"), ("assistant", "a"), (role, "o")]
        turns = (_TURN, f"<think>\nt\n</think>\n\n{_TURN}")
        deltas = {self._after([*begin, ("assistant", turn)], role, "o") for begin in (first, later) for turn in turns}
        if len(deltas) > 1:
            raise UserError("the chat template's text after a turn depends on earlier turns, so it cannot be appended")

    def decode(self, ids: list[int]) -> str:
        """Text of a sampled turn, without its end-of-turn token."""
        kept = ids[:-1] if ids and ids[-1] == self.eos_id else ids
        return str(self.tokenizer.decode(kept, skip_special_tokens=False))

    def _text(
        self, messages: Sequence[tuple[str, str]], tools: Sequence[dict[str, Any]] = (), generate: bool = False
    ) -> str:
        chat = [{"role": role, "content": content} for role, content in messages]
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    chat, tools=list(tools) or None, tokenize=False, add_generation_prompt=generate
                )
            )
        except Exception as error:  # a template raises errors of Jinja, and Python's where it takes a value for another
            roles = ", ".join(dict.fromkeys(role for role, _ in messages))
            what = f"roles {roles}" + (f" and {len(tools)} tools" if tools else "")
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"the chat template refuses a conversation with the {what}: {reason}") from error

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
