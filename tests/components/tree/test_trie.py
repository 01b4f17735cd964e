"""The trie against brute force over all beginnings."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from components.tree.trie import Trie, merge, nested, overlaps

# The bytes of 1 and 256 begin alike in one order of bytes, those of 256 and 257 in the other.
SEQUENCES = st.lists(st.lists(st.sampled_from([0, 1, 256, 257]), max_size=5), max_size=12)


def ids(sequence: list[int]) -> np.ndarray:
    return np.array(sequence, dtype=np.int64)


@given(SEQUENCES)
def test_every_beginning_has_one_number_in_the_order_of_arrival(sequences):
    trie, number_of, before = Trie(), {}, []
    for sequence in sequences * 2:  # the second time all are there
        beginnings = [tuple(sequence[: i + 1]) for i in range(len(sequence))]
        known = [number_of[b] for b in beginnings if b in number_of]
        assert trie.longest(ids(sequence)).tolist() == known
        numbers, shared = trie.add(ids(sequence))
        assert numbers.tolist() == [number_of.setdefault(b, len(number_of)) for b in beginnings]
        assert numbers.dtype == np.int64
        assert (shared, trie.used) == (len(known), len(number_of))
        assert len(known) == max((overlaps([ids(other), ids(sequence)])[1] for other in before), default=0)
        before.append(sequence)
    assert len(overlaps([ids(s) for s in sequences])) == len(sequences)
    trie.clear()
    assert trie.used == len(trie.longest(ids([0, 1]))) == 0


@given(SEQUENCES)
def test_groups_are_led_by_the_sequences_that_no_other_one_extends(sequences):
    for spelled in (sequences, [ids(s).tobytes() for s in sequences]):
        groups = nested(spelled)
        order = [index for group in groups for index in group]
        assert order == sorted(range(len(spelled)), key=spelled.__getitem__, reverse=True)
        heads = [spelled[group[0]] for group in groups]
        for group, head in zip(groups, heads, strict=True):
            extending = [[other for other in heads if other[: len(s)] == s] for s in (spelled[i] for i in group)]
            assert extending[0] == [head]
            assert all(min(others) == head for others in extending)


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from([None, "a", "b"])), max_size=15))
def test_nodes_with_the_same_labels_are_one(drawn):
    edges = [(parent % node, label) if node else (-1, None) for node, (parent, label) in enumerate(drawn)]
    names: list[tuple] = []
    for node, (parent, label) in enumerate(edges):
        names.append((node,) if label is None else (*names[parent], label))
    assert merge(edges) == [names.index(name) for name in names]
