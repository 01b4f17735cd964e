"""Text to token ids and back, by the policy's own chat template.

Only deltas are ever encoded: a prompt once, an observation once, when it is appended. What the policy sampled stays the
ids that it sampled, so a child's ids always start with its parent's. A template may therefore drop the
thoughts of earlier turns (as Qwen3's does): no turn is ever rendered again, only what follows one is.

A question, a passage or what a tool prints may spell a mark of the template (`<|im_end|>`). Only the template writes
marks: such a spelling is cut in two (`BREAK`), so that the tokenizer takes it for plain text, and every encoded text
must have exactly the marks that the template gives around other contents. Texts that spell no mark have the ids that
the tokenizer gives the rendered conversation as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from transformers import AddedToken, PreTrainedTokenizerBase

from components.environments.base import Chat
from components.errors import UserError
from components.policy.checkpoint import ids_of, load_tokenizer

BREAK = "break-4f1c9a"  # inside whatever spells a mark; a token of its own, dropped once the text is encoded
TODAY = datetime(2025, 1, 1)  # for templates that ask: a prompt has the same ids whenever it is rendered
_TURN = "turn-4f1c9a"  # stands for a turn of the policy where the template is asked what follows one
_MARKUP = re.compile(r"<[^\s<>]+>|\[[^\s\[\]]+\]")  # added tokens that are marks though not called special: <think>
_CLOCK = re.compile(r"""strftime_now\(\s*(?:'([^']*)'|"([^"]*)")\s*\)""")

Messages = Sequence[tuple[str, str]]


class Renderer:
    """Renders one policy's conversations.

    Args:
        tokenizer: Needs a chat template.
        stops: Ids at which the engine ends a turn, besides the tokenizer's end token.

    Attributes:
        eos_id: The one that the template ends a turn with.

    Raises:
        UserError: if the template ends a turn with none of them, or what it puts after a turn depends on the turns
            before, so that token-exact prefixes cannot hold.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self._stops = {*stops, tokenizer.eos_token_id} - {None}
        added = [t for t in tokenizer.added_tokens_decoder.values() if t.content != tokenizer.unk_token]
        special = {*tokenizer.all_special_tokens, *(t.content for t in added if t.special)} - {tokenizer.unk_token}
        marks = special | {t.content for t in added if _MARKUP.fullmatch(t.content)}
        self._mark_ids = set(tokenizer.convert_tokens_to_ids(sorted(marks)))
        self._marks, self._special = _any_of(marks), _any_of(special)
        self.end, self.eos_id = self._find_end()
        self._prompt_marks = lru_cache(maxsize=256)(self._marks_around)
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
            renderer = cls(tokenizer, stops := ids_of(config.get("eos_token_id")))
            if renderer.eos_id not in stops:
                shown = config.get("eos_token_id")
                raise UserError(f"its end token {renderer.eos_id} is not config.json's eos_token_id={shown}")
            return renderer
        except Exception as error:  # files, JSON and templates fail in kinds of their own
            raise UserError(f"{path} holds no usable tokenizer: {str(error).splitlines()[0]}") from error

    def prompt_ids(self, chat: Chat) -> list[int]:
        """Token ids of the conversation's beginning, up to where the policy's first turn begins."""
        others = tuple((role, said if role == "assistant" else _other(said)) for role, said in chat.messages)
        marks = self._prompt_marks(others, _Tools(chat.tools))
        try:
            return self._encode(self._text(chat.messages, chat.tools, generate=True), marks)
        except ValueError as error:
            raise UserError(f"the prompt that begins {chat.messages[-1][1][:80]!r}: {error}") from error

    def _observation_ids(self, observation: str, role: str = "tool") -> tuple[int, ...]:
        """Token ids to append after a turn that ended with the end-of-turn token, up to where the next turn begins.

        Raises:
            ValueError: if the observation would be taken for marks of the template in spite of all.
        """
        marks = self._check_role(role, bool(observation.strip()))
        return tuple(self._encode(self._after([("user", "q"), ("assistant", _TURN)], role, observation), marks))

    def decode(self, ids: list[int]) -> str:
        """Text of a sampled turn, without the token that ended it."""
        kept = ids[:-1] if ids and ids[-1] in self._stops else ids
        return str(self.tokenizer.decode(kept, skip_special_tokens=False))

    def _find_end(self) -> tuple[str, int]:
        """What the template ends a turn of the policy with: one of the tokens that end sampling, and its id."""
        ends = {self.tokenizer.convert_ids_to_tokens(stop): stop for stop in sorted(self._stops)}
        rest = self._text([("user", "q"), ("assistant", _TURN)]).partition(_TURN)[2].lstrip()
        end = next((end for end in ends if end and rest.startswith(end)), None)
        if end is None:
            raise UserError(f"the chat template does not end a turn with an end token of the model ({list(ends)})")
        return end, ends[end]

    def _after(self, messages: Messages, role: str, observation: str) -> str:
        """What follows the end token of the last of `messages`, a turn that ends in `_TURN`."""
        text = self._text([*messages, (role, observation)], generate=True)
        _, found, rest = text.partition(_TURN)
        rest = rest.lstrip()
        if not found or not rest.startswith(self.end):
            raise UserError("the chat template rewrites earlier turns, so branching at a prefix cannot be token-exact")
        return rest[len(self.end) :]

    def _refuse_dependence(self, role: str, filled: bool) -> tuple[int, ...]:
        """The marks of an observation; what is appended must be the same after any turn.

        That is after one with a thought or without, after the first or a later one.
        """
        first, later = [("user", "q")], [("user", "q"), ("assistant", "a"), (role, "o")]
        turns = (_TURN, f"<think>\nt\n</think>\n\n{_TURN}")
        said = "o" if filled else ""
        after = {self._after([*begin, ("assistant", turn)], role, said) for begin in (first, later) for turn in turns}
        if len(after) > 1:
            raise UserError("the chat template's text after a turn depends on earlier turns, so it cannot be appended")
        return self._mark_sequence(after.pop())

    def _text(self, messages: Messages, tools: Sequence[dict[str, Any]] = (), generate: bool = False) -> str:
        """The rendered conversation, with a `BREAK` in all that its contents and tools spell like marks."""
        chat = [
            # a worked turn may have the marks that the policy itself writes, a thought's or a call's
            {"role": role, "content": _broken(content, self._special if role == "assistant" else self._marks)}
            for role, content in messages
        ]
        shown = _mapped(list(tools), lambda text: _broken(text, self._marks)) or None
        try:
            template = _pinned(self.tokenizer.get_chat_template(tools=shown))
            return str(
                self.tokenizer.apply_chat_template(
                    chat, tools=shown, chat_template=template, tokenize=False, add_generation_prompt=generate
                )
            )
        except UserError:
            raise
        except Exception as error:  # a template raises errors of Jinja, and Python's where it takes a value for another
            roles = ", ".join(dict.fromkeys(role for role, _ in messages))
            what = f"roles {roles}" + (f" and {len(tools)} tools" if tools else "")
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"the chat template refuses a conversation with the {what}: {reason}") from error

    def _encode(self, text: str, marks: tuple[int, ...]) -> list[int]:
        """Ids of a rendered text, which must have these marks."""
        if BREAK in text:
            breaking, break_id = self._breaking
            ids = [i for i in breaking(text, add_special_tokens=False)["input_ids"] if i != break_id]
        else:
            ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        if tuple(i for i in ids if i in self._mark_ids) != marks:
            raise ValueError("the tokenizer makes marks of the chat template of its text")
        return ids

    def _marks_around(self, messages: Messages, tools: _Tools) -> tuple[int, ...]:
        """The marks of a prompt whose contents have none; the template must show the tools."""
        text = self._text(messages, tools, generate=True)
        if tools and text == self._text(messages, generate=True):
            raise UserError("the chat template shows no tools to the policy; describe them in the system prompt")
        return self._mark_sequence(text)

    def _mark_sequence(self, text: str) -> tuple[int, ...]:
        return tuple(i for i in self.tokenizer(text, add_special_tokens=False)["input_ids"] if i in self._mark_ids)

    @cached_property
    def _breaking(self) -> tuple[PreTrainedTokenizerBase, int]:
        """The tokenizer with `BREAK` as one token more, and that token's id; the model never sees it."""
        tokenizer = deepcopy(self.tokenizer)
        tokenizer.add_tokens([AddedToken(BREAK, special=True, normalized=False)], special_tokens=True)
        return tokenizer, int(tokenizer.convert_tokens_to_ids(BREAK))


class _Tools(tuple[dict[str, Any], ...]):
    """Schemas of tools; equal ones have the same hash."""

    def __hash__(self) -> int:
        return hash(repr(self))


def _any_of(marks: set[str]) -> re.Pattern[str]:
    """Finds any of the marks; those of one character cannot be cut in two."""
    return re.compile("|".join(re.escape(mark) for mark in sorted(marks) if len(mark) > 1) or "(?!)")


def _broken(text: str, marks: re.Pattern[str]) -> str:
    """The text with a `BREAK` behind the first character of each spelling of a mark, overlapping ones included."""
    parts, begin = [], 0
    while found := marks.search(text, begin):
        parts += [text[begin : found.start() + 1], BREAK]
        begin = found.start() + 1
    return "".join([*parts, text[begin:]])


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON-like value with all its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(inner, change) for key, inner in value.items()}
    return [_mapped(inner, change) for inner in value] if isinstance(value, list | tuple) else value


def _other(text: str) -> str:
    """A content without marks in its place; some templates leave out what is empty."""
    return "o" if text.strip() else text


@lru_cache(maxsize=16)
def _pinned(template: str) -> str:
    """The template with `TODAY` for the time that it asks for."""
    pinned = _CLOCK.sub(lambda found: repr(TODAY.strftime(found[1] or found[2] or "")), template)
    if "strftime_now(" in pinned:
        raise UserError("the chat template reads the clock (strftime_now) in a form that cannot be pinned to one date")
    return pinned
