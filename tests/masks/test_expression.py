"""Masks parsed from text: the printed form of a mask can be parsed; other text is rejected."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise.errors import BadValue
from headwise.masks import MASKS, Mask, appended, every
from headwise.masks.expression import DEEPEST, LONGEST, parse
from headwise.masks.patterns.block_sparse import MOST
from headwise.shapes import AttentionShape
from tests.examples import identity

SMALL = st.integers(0, 7)
LEAVES = st.one_of(
    st.just(hw.full()),
    st.just(hw.causal()),
    st.builds(hw.window, SMALL, SMALL),
    st.builds(lambda a, b, c: hw.dilated(a, b, step=c + 1), SMALL, SMALL, SMALL),
    st.builds(lambda n: hw.strided(n + 1), SMALL),
    st.builds(lambda n, m: hw.fixed(n + m + 1, m), SMALL, SMALL),
    st.builds(lambda n: every(n + 1), SMALL),
    st.builds(lambda n, m, s: hw.random_blocks(n + 1, m + 1, seed=s), SMALL, SMALL, SMALL),
    st.builds(lambda n, m, s: hw.lsh(n + 1, chunk=m + 1, seed=s), SMALL, SMALL, SMALL),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda mask: ~mask),
        st.lists(inner, min_size=1, max_size=3).map(hw.per_head),
        st.tuples(inner, SMALL).map(lambda pair: appended(*pair)),
    ),
    max_leaves=8,
)

WITH_TENSORS = [
    hw.padding([3, 0]),
    ~hw.padding([7, 2]) | hw.causal(),
    hw.prefix([3, 1]),
    hw.global_tokens([0, 4]),
    hw.window(1, 1) | hw.global_tokens([2], symmetric=False),
    hw.global_tokens([]),
]


@given(mask=TREES)
def test_what_a_mask_prints_makes_the_same_mask(mask):
    assert parse(repr(mask)) == mask


@pytest.mark.parametrize("mask", WITH_TENSORS, ids=identity)
def test_what_a_mask_with_numbers_prints_sees_the_same_pairs(mask):
    again, shape = parse(repr(mask)), AttentionShape(2, 3, 5, 7, 2, torch.device("cpu"))
    assert repr(again) == repr(mask)
    assert torch.equal(again.dense(shape), mask.dense(shape))


def test_every_mask_there_is_can_be_read():
    texts = {
        "appended": "appended(causal(), 1)",
        "block_sparse": "block_sparse([[True, False], [True, True]], 2)",
        "causal": "causal()",
        "chunked": "chunked(size=4)",
        "dilated": "dilated(1, 1, step=2)",
        "documents": "documents([2, 3], [4, 1])",
        "every": "every(step=3)",
        "fixed": "fixed(3, 1)",
        "from_tensor": "from_tensor([[True, False], [True, True]], layout='q k')",
        "full": "full()",
        "global_tokens": "global_tokens([0], symmetric=False)",
        "lsh": "lsh(2, chunk=3, buckets=[2, 4], seed=0, own=False)",
        "padding": "padding([[True, False, True]])",
        "per_head": "per_head([causal(), ~full()])",
        "prefix": "prefix(2)",
        "random_blocks": "random_blocks(2, 1, seed=5)",
        "strided": "strided(3)",
        "tree": "tree([-1, 0, 0])",
        "window": "window(2, right=1)",
        "window2d": "window2d(1, 0, width=3)",
    }
    assert list(texts) == [mask.__name__ for mask in MASKS]
    assert all(isinstance(parse(text), Mask) for text in texts.values())


def test_lists_of_truth_and_lists_of_lists_are_tensors():
    shape = AttentionShape(2, 1, 3, 3, 0, torch.device("cpu"))
    assert torch.equal(
        parse("documents([[0, 0, 1], [0, 1, 1]])").dense(shape),
        hw.documents(torch.tensor([[0, 0, 1], [0, 1, 1]])).dense(shape),
    )
    assert parse("global_tokens([False, True, False])").dense(shape)[0, 0, 0].tolist() == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("causal() & window(3, 0)", hw.causal() & hw.window(3, 0)),
        ("  causal()\n &\t window(3,\n0)  ", hw.causal() & hw.window(3, 0)),
        ("causal()|full()&window(1,2)", hw.causal() | hw.full() & hw.window(1, 2)),
        ("(causal() | full()) & window(1, 2)", (hw.causal() | hw.full()) & hw.window(1, 2)),
        ("~causal() | full()", ~hw.causal() | hw.full()),
        ("~(causal() | full())", ~(hw.causal() | hw.full())),
        ("~~causal()", hw.causal()),
        ("((((causal()))))", hw.causal()),
    ],
)
def test_operators_bind_as_in_python(text, mask):
    assert parse(text) == mask


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected an expression such as .* got an empty text; the masks are appended, block"),
        (" \n", "got an empty text"),
        ("causal", r"expected causal\(\), with parentheses, got 'causal' at character 1;"),
        ("full() | dilated", r"dilated\(left, right, step=…\), with parentheses, .* character 10"),
        ("casual()", "expected one of the masks: causal, got 'casual' at character 1; `headwise"),
        ("因果()", "one of the masks: appended, .* window2d, got '因果' at character 1"),
        ("hw.causal()", r"expected causal\(\) without prefix, got 'hw.causal\(\)' at character 1"),
        ("causal() and full()", r"combined with & \| ~, got 'causal\(\) and full\(\)' at charac"),
        ("not causal()", r"combined with & \| ~, got 'not causal\(\)'"),
        ("causal() + full()", r"combined with & \| ~"),
        ("causal() < full()", r"combined with & \| ~"),
        ("causal() & 3", r"expected a mask such as .*, got '3' at character 12"),
        ("[causal()]", r"expected a mask such as .*, got '\[causal\(\)\]' at character 1"),
        ("causal( & x", "a syntax error at character 9: '& x'; check parentheses"),
        ("causal() & ", "a syntax error at character 11: ''"),
        ("  causal( & x", "a syntax error at character 11: '& x'"),
        ("a\0b", r"a syntax error at character 1: 'a\\x00b'"),
        (
            "padding(<bool (2, 5)>)",
            "got only the shape of a tensor at character 9; write the tensor",
        ),
        ("window(3)", r"expected window\(left, right\), got 'window\(3\)' at character 1"),
        ("window(3, 0, 1)", r"expected window\(left, right\)"),
        ("window(*[3, 0])", r"expected window\(left, right\)"),
        ("window(**{})", r"expected window\(left, right\)"),
        ("dilated(1, 1, 2)", r"expected dilated\(left, right, step=…\)"),
        ("global_tokens(0)", r"global_tokens|chosen = a list of integers or a list of lists"),
        ("global_tokens([0], symmetric=3)", "expected symmetric = True or False, got"),
        ("window(1.5, 0)", "integers, True, False, .* got '1.5' at character 8"),
        ("window('a', 0)", "expected left = an integer"),
        ("window(True, 0)", "expected left = an integer"),
        ("window(None, 0)", "got 'None' at character 8"),
        ("window(-1, 0)", r"at character 1: window: left must be >= 0, got -1; use window\(0, 0"),
        ("full() & window(-1, 0)", "at character 10: window: left must be >= 0"),
        ("window(9999999999, 0)", "expected an integer up to 2147483647, got '9999999999'"),
        ("documents([9999999])", r"integer up to 1048576, got '9999999' at character 12"),
        (f"documents([{'1048576, ' * 17}])", "expected numbers whose sum is at most 16777216"),
        ("documents(5)", "expected parts = a list of integers or a list of lists"),
        ("per_head(causal())", "expected masks = a list of masks"),
        ("per_head([causal(), 1])", "expected a list whose elements are all"),
        ("padding([1, True])", "expected a list whose elements are all"),
        ("from_tensor([[True], [True, False]])", "expected rows of equal length"),
        ("from_tensor([[]])", "expected rows of equal length"),
        ("from_tensor([[[[[True]]]]])", "expected rows of equal length"),
        ("from_tensor([[True]], 'k q')", "expected layout = 'q k' | 'b q k'"),
        ("appended(1, 1)", "expected mask = a mask"),
        ("appended(causal(), -1)", "at character 1: appended: count must be >= 0, got -1"),
        ("__import__('os').system('x')", "calls of masks, integers"),
        ("(lambda: 1)()", "calls of masks, integers"),
        ("f'{1}'", "calls of masks, integers"),
        ("causal() if 1 else full()", "calls of masks, integers"),
        ("[causal() for x in 1]", "calls of masks, integers"),
        ("causal().draw(3)", "calls of masks, integers"),
        ("~" * (LONGEST - 9) + "causal()", f"at most {DEEPEST} nested operators and calls"),
        (" & ".join(["full()"] * 100), f"at most {DEEPEST} nested operators and calls"),
        ("(" * 300 + "full()" + ")" * 300, "a syntax error at character"),
        ("full()" + " " * LONGEST, f"at most {LONGEST} characters, got {LONGEST + 6}"),
    ],
)
def test_what_is_no_mask_is_named_with_its_place_and_the_way_out(text, message):
    with pytest.raises(BadValue, match=message) as caught:
        parse(text)
    assert caught.value.text.zh != caught.value.text.en
    assert "\n" not in caught.value.text.en + caught.value.text.zh


@given(text=st.text("causl()&|~ [],=0123TrueFalse_'window\\\n\0\u3000全", max_size=40))
def test_any_text_is_a_mask_or_one_clear_error(text):
    try:
        mask = parse(text)
    except BadValue as error:
        said = error.text.en
    else:
        said = "mask: " * isinstance(mask, Mask)
    assert said.startswith("mask: ")


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (hw.causal() & hw.window(3, 0), {}),
        (hw.padding([3, 1]) & hw.causal(), {"B": 2}),
        (hw.padding(torch.ones(2, 5).bool()), {"B": 2, "Lk": 5}),
        (hw.documents([2, 3]) | ~hw.padding([1, 1, 1]), {"B": 3, "Lk": 5}),
        (hw.per_head([hw.causal(), hw.full(), hw.padding([1, 2])]), {"H": 3, "B": 2}),
        (hw.global_tokens([0, 4]), {}),
        (hw.global_tokens(torch.ones(2, 7).bool()), {"B": 2, "Lk": 7}),
        (appended(hw.documents([2, 3]), 2), {"B": 1, "Lk": 7}),
        (hw.block_sparse(torch.ones(6, 2, 3).bool(), 4), {"H": 6}),
        (hw.from_tensor(torch.ones(5, 7).bool()), {"Lq": 5, "Lk": 7}),
        (hw.from_tensor(torch.ones(6, 5, 7).bool(), "h q k"), {"H": 6, "Lq": 5, "Lk": 7}),
        (hw.from_tensor(torch.ones(2, 6, 5, 7).bool()), {"B": 2, "H": 6, "Lq": 5, "Lk": 7}),
        (hw.from_tensor(torch.ones(6, 5, 7).bool()), {}),
    ],
)
def test_sizes_are_those_a_mask_can_be_called_with(mask, expected):
    assert mask.required_sizes() == expected
    letters = {"B": 2, "H": 6, "Lq": 5, "Lk": 7} | {n: s for n, s in expected.items() if s > 1}
    place = AttentionShape(*letters.values(), letters["Lk"] - letters["Lq"], torch.device("cpu"))
    assert mask.dense(place).shape[-2:] == (letters["Lq"], letters["Lk"])


def test_a_mask_refuses_what_would_not_fit_into_memory_or_has_no_meaning():
    place = AttentionShape(1, 1, 3, 3, 0, torch.device("cpu"))
    with pytest.raises(BadValue, match="the 5 appended keys, got 3 keys"):
        appended(hw.full(), 5).dense(place)
    long = AttentionShape(1, 1, 2**15, 2**15, 0, torch.device("cpu"))
    with pytest.raises(BadValue, match=f"at most {MOST} pairs of blocks, got 32768 x 32768; use"):
        hw.random_blocks(1, 1, seed=0).resolve(long)
