"""Many histories in few passes: each is read where it ends, and one that begins another costs nothing."""

from __future__ import annotations

import numpy as np
import torch

from components.predictor.shared import passes, read
from components.tree.trie import nested


def test_every_history_is_read_at_its_end_and_no_beginning_twice():
    rng = np.random.default_rng(0)
    chains = [rng.integers(1, 4, rng.integers(5, 30)).tolist() for _ in range(20)]
    histories = [chain[:cut] for chain in chains for cut in (2, 4, len(chain), len(chain))]
    found = list(passes(histories, tokens=64))
    assert len(found) > 1
    assert sorted(i for each in found for i in each.index_A.tolist()) == list(range(len(histories)))
    for each in found:
        assert each.tokens.numel() <= 64
        for index, row, last in zip(each.index_A, each.row_A, each.last_A, strict=True):
            assert each.tokens[row, : last + 1].tolist() == histories[int(index)]
    assert sum(len(each.tokens) for each in found) == len(nested(histories))
    assert [each.tokens.shape for each in passes([[1] * 9, [2]], tokens=4)] == [(1, 1), (1, 9)]  # the longer one alone


def test_what_is_read_keeps_order_and_gradient():
    weight = torch.ones(1, requires_grad=True)
    histories = [[1, 2, 3], [1, 2], [5]]
    out = read(histories, 1, lambda p: (p.tokens[p.row_A, p.last_A] * weight)[:, None])
    assert out[:, 0].tolist() == [3.0, 2.0, 5.0]
    out.sum().backward()
    assert weight.grad is not None
    assert float(weight.grad) == 10.0
