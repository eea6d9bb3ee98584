"""Chunks, grids, packed cross-attention and trees of drafts, compared with their definitions."""

import pytest
import torch

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.masks.patterns.tree import Tree
from headwise.shapes import AttentionShape
from headwise.verify.oracle.tolerance import accept

CPU = torch.device("cpu")


def dense(mask, queries, keys, batch=1):
    shape = AttentionShape(batch, 1, queries, keys, keys - queries, CPU)
    return mask.dense(shape)[:, 0]


@pytest.mark.parametrize(("vertical", "horizontal", "width"), [(1, 1, 4), (0, 2, 5), (2, 0, 3)])
def test_window2d_sees_rows_and_columns_near(vertical, horizontal, width):
    grid = [(n // width, n % width) for n in range(23)]
    right = [
        [abs(r - y) <= vertical and abs(c - x) <= horizontal for y, x in grid] for r, c in grid
    ]
    mask = hw.window2d(vertical, horizontal, width=width)
    assert dense(mask, 23, 23)[0].tolist() == right
    assert dense(mask, 5, 23)[0].tolist() == right[-5:]


def test_chunked_is_llamas():
    from transformers.masking_utils import chunked_overlay

    theirs = chunked_overlay(4, torch.zeros(1, dtype=torch.long))
    q, k = torch.arange(11)[:, None], torch.arange(11)
    right = torch.stack([theirs(0, 0, row, k) for row in q])
    assert torch.equal(dense(hw.chunked(4), 11, 11)[0], right)


def test_packed_cross_attention_is_each_text_alone():
    queries, keys = [2, 0, 3], [4, 1, 2]
    q, k, v = (torch.randn(1, 2, n, 8).double() for n in (5, 7, 7))
    mask = hw.documents(queries, keys)
    found, first, key = hw.attend(q, k, v, mask=mask), 0, 0
    for n, m in zip(queries, keys, strict=True):
        own = (q[:, :, first : first + n], k[:, :, key : key + m], v[:, :, key : key + m])
        right = hw.attend(*own)
        accept(found[:, :, first : first + n], right.float(), right)
        first, key = first + n, key + m
    sums = [0, 2, 2, 5], torch.tensor([0, 4, 5, 7], dtype=torch.int32)
    assert torch.equal(dense(hw.documents.from_cu_seqlens(*sums), 5, 7), dense(mask, 5, 7))
    ids = torch.tensor([0, 0, 2, 2, 2]), torch.tensor([[0, 0, 0, 0, 1, 2, 2]])
    assert torch.equal(dense(hw.documents(*ids), 5, 7), dense(mask, 5, 7))
    assert repr(mask) == "documents(<(1, 5)>, <(1, 7)>)"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda f: f([1, 2]), BadValue, "cu_seqlens_q must start at 0 and never fall, got .1, 2"),
        (lambda f: f([0, 3, 2]), BadValue, "must start at 0 and never fall"),
        (lambda f: f([]), BadValue, "must start at 0"),
        (lambda f: f([0, 1], [0, 1, 2]), BadValue, "cu_seqlens_q has 1 documents, but .* 2"),
        (lambda f: f([0, 1], [1, 2]), BadValue, "cu_seqlens_k must start at 0"),
        (lambda f: f(torch.tensor([0.0, 1.0])), BadType, "documents: expected a sequence of int"),
    ],
)
def test_wrong_cumulative_lengths_are_named(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make(hw.documents.from_cu_seqlens)
    assert caught.value.text.zh != caught.value.text.en


def test_packed_queries_of_another_number_are_refused():
    mask = hw.documents([2, 1], [2, 2])
    with pytest.raises(BadValue, match=r"documents: the queries were numbered .*\(1, 3\).*\(1, 4"):
        dense(mask, 4, 4)
    assert mask.required_sizes() == {"B": 1, "Lk": 4, "Lq": 3}


def paths(parents):
    """For each node the nodes from the root to it."""
    result = []
    for node, parent in enumerate(parents):
        result.append(([] if parent < 0 else result[parent]) + [node])
    return result


@pytest.mark.parametrize("parents", [[-1, 0, 0, 1, 1, 2], [-1, -1, 0, 1, 3], [-1]])
@pytest.mark.parametrize("whole", [False, True])
def test_one_call_over_a_tree_is_a_call_for_each_path(parents, whole):
    """With the context in the keys only, as from a cache, and with its queries in the call."""
    context, nodes, dim = 5, len(parents), 8
    q, k, v = (torch.randn(1, 2, context + nodes, dim).double() for _ in range(3))
    mask = hw.tree(parents)
    assert isinstance(mask, Tree)
    places = torch.cat((torch.arange(context), context + mask.depths[0]))
    rotary = hw.Rotary(dim, pairs="halves")
    first = 0 if whole else context
    found = hw.attend(q[:, :, first:], k, v, mask=mask, position=rotary.at(places[first:], places))
    for node, path in enumerate(paths(parents)):
        rows = [*range(context), *(context + n for n in path)]
        right = hw.attend(*(x[:, :, rows] for x in (q, k, v)), mask=hw.causal(), position=rotary)
        own = found[:, :, context - first + node]
        accept(own, right[:, :, -1].float(), right[:, :, -1])
        if whole:
            accept(found[:, :, :context], right[:, :, :context].float(), right[:, :, :context])


def test_a_tree_for_each_sample_and_what_it_prints():
    both = torch.tensor([[-1, 0, 1], [-1, 0, 0]])
    seen = dense(hw.tree(both), 3, 4, batch=2)
    for row, own in zip(both.tolist(), seen, strict=True):
        assert torch.equal(dense(hw.tree(row), 3, 4)[0], own)
        assert repr(hw.tree(row)) == f"tree({row})"
    assert repr(hw.tree(both)) == "tree(<(2, 3)>)"
    assert hw.tree(both).depths.tolist() == [[0, 1, 2], [0, 1, 1]]


@pytest.mark.parametrize(
    ("parents", "error", "message"),
    [
        ([0], BadValue, "parent of node 0 must be from -1 to -1, got 0; number the nodes"),
        ([-1, 0, 2], BadValue, "parent of node 2 must be from -1 to 1, got 2"),
        ([-2], BadValue, "tree: a parent must be >= -1, got -2; -1 is a root"),
        ([], BadValue, "tree: expected 1 to 2048 nodes, got 0"),
        (torch.ones(2), BadType, "tree: expected an integer tensor"),
    ],
)
def test_wrong_parents_are_named(parents, error, message):
    with pytest.raises(error, match=message) as caught:
        hw.tree(parents)
    assert caught.value.text.zh != caught.value.text.en


def test_a_tree_larger_than_the_keys_is_refused():
    with pytest.raises(
        BadValue, match=r"tree: the mask has batch size 1 and 3 nodes, .* and 2 keys"
    ):
        dense(hw.tree([-1, 0, 1]), 2, 2)
    with pytest.raises(BadValue, match="tree: the mask needs the number of keys"):
        hw.tree([-1]).rule(*(torch.zeros(1, 1, 1, 1).long() for _ in range(4)))


def test_a_tree_is_verified_over_a_cache():
    """The module reads a text, and then all drafts in one call."""
    layer = hw.MultiheadAttention(8, 2, batch_first=True, mask=None).double().eval()
    x, drafts, parents = torch.randn(1, 4, 8).double(), torch.randn(1, 4, 8).double(), [-1, 0, 0, 1]
    with torch.no_grad():
        cache = hw.nn.GrowingCache()
        layer.attend(x, x, x, mask=hw.causal(), cache=cache)
        found = layer.attend(drafts, drafts, drafts, mask=hw.tree(parents), cache=cache).output
        for node, path in enumerate(paths(parents)):
            whole = torch.cat((x, drafts[:, path]), 1)
            right = layer.attend(whole, whole, whole, mask=hw.causal()).output[:, -1]
            accept(found[:, node], right.float(), right)
