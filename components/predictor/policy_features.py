"""`policy-features`: what the policy's own hidden states, its hesitation and the prompt's words say of V.

Four kinds of features, for one forward pass over the histories and no backward pass through the policy:

- the hidden states of every layer at the turn boundary, and their means over the prompt;
- how sure the policy was of what it sampled (log-probabilities kept from sampling): a turn that the policy sampled
  against its own odds is where a rollout goes wrong;
- how long the history is;
- how often each token stands in the prompt, hashed to a few columns: the hidden states move with every update, the
  words stay.

Every other member of the ensemble sees no hidden states, so that members differ in more than their first weights.
docs/predictor.md says what each part brought.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from components.allocation.anchors import Belief
from components.policy.checkpoint import shared_model
from components.policy.packing.rows import walk
from components.policy.packing.tree_attention import blocks
from components.predictor.base import FitParams, Predictor, Prefix
from components.predictor.heads import BetaEnsemble, fit_beta_binomial, load_state, mixture_belief, save_state
from components.predictor.shared import FORWARD_TOKENS
from components.tree.trie import overlaps

WORD_COLUMNS = 256
CONFIDENCE_COLUMNS = 5
SHORT_PROMPT = 16


class PolicyFeatures(Predictor):
    """See the module's text: `members` of the ensemble; the hidden states of the checkpoint `policy` are features."""

    def __init__(self, params: FitParams, members: int, policy: Path) -> None:
        self.params = params
        self.model: Any = shared_model(policy)
        config = self.model.config
        self.width = 2 * (config.num_hidden_layers + 1) * config.hidden_size
        with torch.random.fork_rng():  # the same first head for every run, and no one else's draws disturbed
            torch.manual_seed(0)
            width = self.width + CONFIDENCE_COLUMNS + WORD_COLUMNS
            self.head = BetaEnsemble(width, params.hidden, members, hide=self.width)

    def predict(self, prefixes: Sequence[Prefix]) -> Belief:
        with torch.inference_mode():
            return mixture_belief(*self.head(self.features(prefixes)))

    def fit(
        self, prefixes: Sequence[Prefix], successes: np.ndarray, trials: np.ndarray, new: int, seed: int
    ) -> dict[str, float]:
        features = self.features(prefixes)

        def beliefs(rows: Tensor) -> tuple[Tensor, Tensor]:
            mean, concentration = self.head(features.index_select(0, rows))
            return mean, concentration

        return fit_beta_binomial(self.head, beliefs, prefixes, successes, trials, self.params, seed)

    @torch.inference_mode(False)
    @torch.no_grad()
    def features(self, prefixes: Sequence[Prefix]) -> Tensor:
        """All features, (A, F); the hidden states are normalised over their columns."""
        if not prefixes:
            return torch.zeros(0, self.width + CONFIDENCE_COLUMNS + WORD_COLUMNS)
        prompts, prompt_A = _numbered(p.spelled[: 8 * p.prompt_tokens] for p in prefixes)
        words = torch.stack([_words(prompt) for prompt in prompts])
        side = torch.tensor([p.hesitation for p in prefixes])
        states = self._states(prefixes)
        return torch.cat([nn.functional.layer_norm(states, states.shape[1:]), side, words[prompt_A]], dim=-1)

    def _states(self, prefixes: Sequence[Prefix]) -> Tensor:
        """Hidden states of every layer at each prefix's last token, and their means over its prompt; (A, width).

        The histories are read as one trie: tokens that some of them share are computed once.
        """
        length = {p.spelled: p.prompt_tokens for p in prefixes}
        found: dict[bytes, Tensor] = {}
        for part in _parts(sorted(length)):
            packed = walk([np.frombuffer(history, np.int64) for history in part])
            ids, position, end = (torch.from_numpy(x) for x in (packed.token_ids, packed.position_T, packed.end_T))
            layers = self.model.get_decoder()(
                input_ids=ids[None],
                position_ids=position[None],
                attention_mask=torch.zeros(1, 1, 1, 1),  # of four dimensions, so that the library makes none
                tree=blocks(end, self.model.dtype),
                output_hidden_states=True,
                use_cache=False,
            ).hidden_states
            states = torch.cat(layers, dim=-1)[0]
            prompts, prompt_A = _numbered(history[: 8 * length[history]] for history in part)
            place = dict(zip(prompt_A, packed.places, strict=True))  # of a history that begins with the prompt
            means = torch.stack([states[place[i][: len(prompt) // 8]].mean(0) for i, prompt in enumerate(prompts)])
            last = states[[at[-1] for at in packed.places]]
            found |= zip(part, torch.cat([last, means[prompt_A]], dim=-1), strict=True)
        return torch.stack([found[p.spelled] for p in prefixes])

    def save(self, path: Path) -> None:
        save_state(self.head, path / "head.safetensors")

    def load(self, path: Path) -> None:
        load_state(self.head, path / "head.safetensors")


def _parts(histories: list[bytes]) -> list[list[bytes]]:
    """Sorted histories in parts of at most FORWARD_TOKENS different tokens, or of one history."""
    parts: list[list[bytes]] = []
    size = 0
    for history, shared in zip(histories, overlaps([np.frombuffer(h, np.int64) for h in histories]), strict=True):
        new = len(history) // 8 - shared
        if not parts or size + new > FORWARD_TOKENS:
            parts.append([])
            size, new = 0, len(history) // 8
        parts[-1].append(history)
        size += new
    return parts


def _numbered(values: Iterable[bytes]) -> tuple[list[bytes], list[int]]:
    """The different ones in the order in which they come, and the number of each value among them."""
    number: dict[bytes, int] = {}
    numbers = [number.setdefault(value, len(number)) for value in values]
    return list(number), numbers


def _words(prompt: bytes) -> Tensor:
    """How often each token stands in the prompt, hashed; long prompts count in shares."""
    tokens = torch.tensor(np.frombuffer(prompt, np.int64) % WORD_COLUMNS)
    return torch.bincount(tokens, minlength=WORD_COLUMNS) * min(1.0, SHORT_PROMPT / len(tokens))
