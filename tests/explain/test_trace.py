import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise.cli.explain import EXAMPLE, HEADS, TOKENS
from headwise.errors import BadValue
from headwise.explain.array_files import TokenArray
from headwise.explain.trace import MOST_SCORES, Projections, trace
from headwise.verify.oracle.tolerance import accept

LENGTH, DIM = 5, 3


def example():
    return trace(torch.tensor(EXAMPLE, dtype=torch.float64), HEADS, tokens=TOKENS)


def rounded(values):
    return [[round(v, 6) for v in row] for row in values.tolist()]


def projections(embed_dim, heads, dim, value_dim, *, bias=True):
    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64)

    rows = {"q": heads * dim, "k": heads * dim, "v": heads * value_dim}
    weights = [draw(count, embed_dim) for count in rows.values()]
    out = draw(embed_dim, heads * value_dim)
    biases = [draw(count) if bias else None for count in (*rows.values(), embed_dim)]
    return Projections(*weights, out, *biases)


def by_hand(x, weights, heads, allowed, bias, scale):
    """Head by head in plain torch: the weights of each head, and the output."""
    q, k, v = (x @ getattr(weights, n).T + getattr(weights, f"{n}_bias") for n in "qkv")
    dim, value_dim = q.shape[1] // heads, v.shape[1] // heads
    weights_of, outputs = [], []
    for h in range(heads):
        own = slice(h * dim, (h + 1) * dim)
        scores = q[:, own] @ k[:, own].T * scale + bias
        weights_of.append(scores.masked_fill(~allowed, -torch.inf).softmax(-1))
        outputs.append(weights_of[-1] @ v[:, h * value_dim : (h + 1) * value_dim])
    return weights_of, torch.cat(outputs, 1) @ weights.out.T + weights.out_bias


def test_the_example_gives_the_numbers_of_the_issue():
    traced = example()
    assert rounded(traced.get("softmax", 1))[0] == [0.376037, 0.448749, 0.175215]
    assert rounded(traced.get("output")) == [
        [0.847025, 0.872221, 0.200474, 0.233488],
        [0.873998, 0.843181, 0.200476, 0.234110],
        [0.986258, 0.498593, 0.198559, 0.237274],
    ]


@pytest.mark.parametrize("heads", [1, 2, 7])
@pytest.mark.parametrize("mask", ["full", "causal", "window"])
def test_every_number_equals_plain_torch_head_by_head(heads, mask):
    x = torch.randn(LENGTH, 11, dtype=torch.float64)
    weights, bias = projections(11, heads, DIM, 2), torch.randn(LENGTH, LENGTH, dtype=torch.float64)
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    allowed = {"full": i == i, "causal": j <= i, "window": (j >= i - 2) & (j <= i + 1)}[mask]
    chosen = {"full": hw.full(), "causal": hw.causal(), "window": hw.window(2, 1)}[mask]
    both = chosen & hw.from_tensor(bias)
    traced = trace(x, heads, projections=weights, mask=both, scale=0.3)
    softmax, output = by_hand(x, weights, heads, allowed.expand(LENGTH, LENGTH), bias, 0.3)
    accept(traced.get("output"), output, output)
    for h in range(heads):
        accept(traced.get("softmax", h + 1), softmax[h], softmax[h])
    assert traced.changed_by_mask


@given(st.integers(1, 6), st.floats(-3, 3))
def test_equal_scores_give_the_mean_of_v(length, value):
    x = torch.full((length, 2), value, dtype=torch.float64)
    traced = trace(x, 1)
    mean = torch.full((length, length), 1 / length, dtype=torch.float64)
    accept(traced.get("softmax", 1), mean, mean)
    accept(traced.get("output"), x, x)


def test_two_keys_have_the_closed_form():
    traced = trace(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), heads=1, scale=1.0)
    e = math.e
    expected = torch.tensor([[e, 1], [1, e]], dtype=torch.float64) / (1 + e)
    accept(traced.get("softmax", 1), expected, expected)


def test_one_visible_key_copies_v_and_a_blind_row_is_zero():
    x = torch.randn(3, 2, dtype=torch.float64)
    allowed = torch.tensor([[False, False, False], [False, True, False], [True, True, True]])
    traced = trace(x, 1, mask=hw.from_tensor(allowed))
    assert traced.get("softmax", 1)[:2].tolist() == [[0, 0, 0], [0, 1, 0]]
    assert traced.get("output")[0].tolist() == [0, 0]
    assert torch.equal(traced.get("output")[1], x[1])


def test_a_key_that_nobody_sees_still_stands_in_k():
    x = torch.randn(3, 4, dtype=torch.float64)
    hidden = torch.tensor([[True, False, True]] * 3)
    traced = trace(x, 2, mask=hw.from_tensor(hidden))
    assert torch.equal(traced.get("k", 2), x[:, 2:])
    assert torch.equal(traced.get("score", 2), x[:, 2:] @ x[:, 2:].T)
    assert traced.get("masked", 2)[:, 1].tolist() == [-math.inf] * 3


def test_quantities_stand_in_the_order_of_the_computation():
    keys = [(q.key, q.head) for q in example().quantities]
    head = ["q", "k", "v", "score", "scaled", "masked", "softmax", "head"]
    both = [(key, h) for h in (1, 2) for key in head]
    assert keys == [
        *((key, None) for key in ("x", "Q", "K", "V")),
        *both,
        ("concat", None),
        ("output", None),
    ]
    assert not example().changed_by_mask


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.ones(3)}, r"x: expected a matrix \(L, E\).*got \(3,\)"),
        ({"x": torch.ones(0, 4)}, r"x: expected a matrix"),
        ({"x": torch.ones(3, 4, dtype=torch.long)}, r"x: expected a matrix"),
        ({"x": X * torch.nan}, r"x: expected finite numbers, got nan in row 0, column 0"),
        (
            {"heads": 3},
            r"heads: the 4 columns of Q cannot be divided into 3 equal heads; .*divisor of 4",
        ),
        ({"heads": 0}, r"heads: the 4 columns of Q cannot be divided into 0"),
        ({"tokens": ["a"]}, r"tokens: expected 3 tokens, one for each row of x, got 1"),
        (
            {"projections": Projections.identity(6)},
            r"weights: q must have shape \(6, 4\) for an input with 4 columns, got \(6, 6\)",
        ),
        (
            {"projections": Projections(*[torch.eye(4)] * 4, q_bias=torch.ones(3))},
            r"weights: q_bias must have shape \(4,\)",
        ),
        ({"x": torch.ones(3001, 2)}, rf"x: expected at most {MOST_SCORES:,} scores"),
        ({"x": torch.ones(1, 9000)}, r"x: expected at most 4096 columns, got 9000"),
        ({"scale": math.nan}, r"scale: expected a finite number"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(BadValue, match=message):
        trace(**{"x": X, "heads": 2, **arguments})


def test_an_unknown_quantity_is_refused():
    with pytest.raises(BadValue, match=r"trace: there is no quantity 'softmax' of head 3"):
        example().get("softmax", 3)


def test_cross_attention_takes_keys_and_values_from_another_input():
    x = torch.randn(5, 6, dtype=torch.float64)
    kv = TokenArray(torch.randn(3, 7, dtype=torch.float64), ("a", "b", "c"))
    made = torch.nn.MultiheadAttention(6, 2, kdim=7, vdim=7, bias=False, dtype=torch.float64)
    q, k, v = (getattr(made, f"{name}_proj_weight") for name in "qkv")
    traced = trace(x, 2, projections=Projections(q, k, v, made.out_proj.weight), kv=kv)
    output, per_head = made(x, kv.values, kv.values, average_attn_weights=False)
    accept(traced.get("output"), output, output)
    accept(traced.get("softmax", 2), per_head[1], per_head[1])
    assert traced.key_tokens == ("a", "b", "c")
    assert traced.get("kv").equal(kv.values)


POSITIONS = {
    "rotary": lambda: hw.Rotary(4, pairs="halves"),
    "neighbours": lambda: hw.Rotary(4, pairs="neighbours"),
    "alibi": lambda: hw.ALiBi(2),
    "shaw": lambda: hw.Shaw(2, 4).double(),
    "t5": lambda: hw.T5Bias(2).double(),
    "sinusoidal": lambda: hw.Sinusoidal(8),
}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("mask", [None, hw.causal()])
def test_a_position_acts_as_in_attend(name, mask):
    position = POSITIONS[name]()
    x = torch.randn(5, 8, dtype=torch.float64)
    traced = trace(x, 2, position=position, mask=mask)
    with torch.no_grad():
        placed = position.embed(x[None])[0]
        heads = placed.unflatten(1, (2, 4)).transpose(0, 1)[None]
        later = None if name == "sinusoidal" else position
        found = hw.attend(heads, heads, heads, mask=mask, position=later, engine="eager")
    expected = found[0].transpose(0, 1).flatten(1)
    accept(traced.get("output"), expected, expected)
    for head in (1, 2):
        added = traced.get("position", head) if traced.has("position") else 0.0
        total = traced.get("scaled", head) + added
        seen = traced.get("masked", head).isfinite()
        accept(traced.get("masked", head)[seen], total[seen], total[seen])
    names = {"rotary": "turned_q", "neighbours": "turned_q", "sinusoidal": "placed"}
    assert traced.has(names.get(name, "position"))


def test_the_keys_are_checked_too():
    x = torch.ones(2, 4)
    with pytest.raises(BadValue, match=r"kv: expected finite numbers, got nan in row 0"):
        trace(x, 1, kv=TokenArray(torch.full((2, 4), torch.nan)))
    with pytest.raises(
        BadValue, match=r"weights: k must have shape \(4, 3\) for an input with 3 columns"
    ):
        trace(x, 1, kv=TokenArray(torch.ones(2, 3)))
