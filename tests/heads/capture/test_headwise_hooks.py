"""Capture of `headwise.MultiheadAttention`, of tensors q, k and v, and of converted models."""

from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.call import Call
from headwise.errors import BadType, BadValue
from headwise.heads.capture import Recorder, measure
from headwise.heads.metrics import ENTROPY, MEASURED, METRICS, UNSPENT
from headwise.heads.names import Head, Layer
from headwise.masks import appended
from headwise.nn import GrowingCache, SlidingCache
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.heads.tiny import bert, llama, mistral, t5

B, L, E, H, D = 2, 11, 12, 3, 4


def head(number: int, layer: int = 0, part: str = "") -> Head:
    return Head(Layer(part, layer), number)


def own(**options: object) -> hw.MultiheadAttention:
    torch.manual_seed(5)
    return hw.MultiheadAttention(E, H, batch_first=True, **options).eval()  # type: ignore[arg-type]


OPTIONS = {
    "plain": {},
    "mask": {"mask": hw.causal() & hw.window(3, 0)},
    "alibi": {"mask": hw.causal(), "position": hw.ALiBi(H)},
    "rotary": {"position": hw.Rotary(D, pairs="halves")},
    "shaw": {"position": hw.Shaw(3, D, value_dim=D)},
    "appended": {"add_bias_kv": True, "add_zero_attn": True},
    "groups": {"num_kv_heads": 1, "mask": hw.prefix(4)},
    "sinks": {"sinks": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("padded", [False, True])
def test_weights_are_those_the_module_returns(name: str, padded: bool) -> None:
    module, x = own(**OPTIONS[name]), torch.randn(B, L, E)
    given = {}
    if padded:
        given["key_padding_mask"] = torch.tensor([[False] * L, [False] * 8 + [True] * 3])
    heads = [head(n) for n in range(H)]
    with torch.no_grad():
        before, plain = module(x, x, x, average_attn_weights=False, **given)
        with hw.capture(module, heads=heads) as seen:
            during, _ = module(x, x, x, average_attn_weights=False, **given)
        twin = own(**OPTIONS[name]).double()
        twin.load_state_dict({k: v.double() for k, v in module.state_dict().items()})
        _, oracle = twin(*[x.double()] * 3, average_attn_weights=False, **given)
    assert torch.equal(before, during)
    for n in range(H):
        accept(seen.weights[head(n)], plain[:, n], oracle[:, n])
        assert bool((seen.weights[head(n)][~seen.allowed[head(n)]] == 0).all())
    real = B * L - (3 if padded else 0)
    assert seen.statistics.layers[Layer("", 0)].queries == real
    assert "attend_heads" not in vars(module)


def test_what_a_query_may_not_see_is_not_allowed_and_not_zero() -> None:
    module, x = own(mask=hw.causal() & hw.window(2, 0)), torch.randn(1, L, E)
    with torch.no_grad(), hw.capture(module, heads=[head(1)]) as seen:
        module(x, x, x)
    i, j = torch.arange(L)[:, None], torch.arange(L)
    assert torch.equal(seen.allowed[head(1)][0], (j <= i) & (i - j <= 2))


def test_projections_of_global_tokens_are_refused() -> None:
    module = own(mask=hw.global_tokens([0]) | hw.window(2, 2), global_projections=True)
    with pytest.raises(BadValue, match="separate projections of global tokens"), hw.capture(module):
        pass


@pytest.mark.parametrize("make", [bert, llama, mistral, t5], ids=lambda make: make.__name__)
def test_a_model_on_headwise_shows_what_it_showed_before(make: object) -> None:
    model = make("sdpa")  # type: ignore[operator]
    ids = torch.randint(3, 31, (B, L))
    mask = torch.ones(B, L, dtype=torch.long)
    mask[1, 8:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if make is t5:
        given["decoder_input_ids"] = ids[:, :5]
    part = "decoder" if make is t5 else ""
    heads = [head(1, 1, part)]
    with torch.no_grad():
        with hw.capture(model, heads=heads) as plain:
            model(**given)
        with hw.capture(model.double(), heads=heads) as oracle:
            model(**given)
        hw.convert(model.float())
        before = model(**given).last_hidden_state
        with hw.capture(model, heads=heads) as seen:
            during = model(**given).last_hidden_state
    assert torch.equal(before, during)
    real = slice(None) if part else mask.bool()
    accept(
        seen.weights[heads[0]][real], plain.weights[heads[0]][real], oracle.weights[heads[0]][real]
    )
    assert torch.equal(seen.allowed[heads[0]][real], plain.allowed[heads[0]][real])
    assert list(seen.statistics.layers) == list(plain.statistics.layers)


def test_one_mask_of_a_conversion_is_seen_by_the_capture() -> None:
    model = llama()
    hw.convert(model, mask=hw.window(2, 0))
    with torch.no_grad(), hw.capture(model, heads=[head(0)]) as seen:
        model(input_ids=torch.randint(3, 31, (1, L)))
    i, j = torch.arange(L)[:, None], torch.arange(L)
    assert torch.equal(seen.allowed[head(0)][0], (j <= i) & (i - j <= 2))


def test_bare_q_k_v_are_measured_as_attend_would_run_them() -> None:
    torch.manual_seed(6)
    q, k, v = torch.randn(B, H, L, D), torch.randn(B, 1, 13, D), torch.randn(B, 1, 13, D)
    options = {"mask": hw.causal() & hw.window(4, 0), "position": hw.ALiBi(H)}
    heads = [head(n) for n in range(H)]
    seen = measure(q, k, v, heads=heads, **options)  # type: ignore[arg-type]
    plain = hw.attend(q, k, v, need=["weights", "entropy"], engine="eager", **options)
    exact = reference(Call.of(q, k, v, **options)).weights  # type: ignore[arg-type]
    for n in range(H):
        accept(seen.weights[head(n)], plain.weights[:, n], exact[:, n])
    own = torch.tensor([seen.statistics.value(ENTROPY, each) for each in heads])
    chooses = (exact > 0).sum(-1) > 1  # all but the queries that see one key
    entropy = -torch.special.xlogy(exact, exact).sum(-1)
    means = [
        (each * chooses).sum((0, 2)) / chooses.sum((0, 2)) for each in (plain.entropy, entropy)
    ]
    accept(own, means[0], means[1])
    assert seen.statistics.layers[Layer("", 0)].queries == B * L


def test_what_is_wanted_is_what_is_measured() -> None:
    q = torch.randn(1, 2, 5, 4)
    assert measure(q, q, q, want=["max", "entropy"]).statistics.metrics == tuple(
        metric for metric in METRICS if metric.name in ("entropy", "max")
    )
    with pytest.raises(BadValue, match="want: unknown 'entropie'; expected one of 'entropy'"):
        measure(q, q, q, want=["entropie"])
    with pytest.raises(BadType, match=r"want: expected a collection of names.*want=\['entropy'\]"):
        measure(q, q, q, want="entropy")
    with (
        pytest.raises(BadValue, match=r"rows: expected query indices of at least 0, got -1"),
        hw.capture(own(), rows=[-1]),
    ):
        pass


@pytest.mark.parametrize("heads", ["L0H1", " l0h1", ["L0H1"], (head(1),), {"L0H1"}, head(1)])
def test_heads_are_taken_by_name_too(heads: object) -> None:
    module, x = own(), torch.randn(B, L, E)
    q = x.unflatten(-1, (H, D)).transpose(1, 2)
    with torch.no_grad(), hw.capture(module, heads=heads) as seen:  # type: ignore[arg-type]
        module(x, x, x)
    assert list(seen.weights) == [head(1)]
    assert list(measure(q, q, q, heads=heads).weights) == [head(1)]  # type: ignore[arg-type]
    assert list(measure(q, q, q, heads="all").weights) == [head(n) for n in range(H)]


def run(capturing: AbstractContextManager[Recorder], module: nn.Module, x: Tensor) -> None:
    """One pass inside a capture."""
    with torch.no_grad(), capturing:
        module(x, x, x)


def test_a_head_that_does_not_exist_is_an_error_and_not_nothing() -> None:
    module, x = own(), torch.randn(B, L, E)
    q, there = x.unflatten(-1, (H, D)).transpose(1, 2), r"there are L0H0 … L0H2, counted from 0"
    for missing in ("L0H3", "L1H0", "cross.L0H0"):
        with pytest.raises(BadValue, match=f"heads: {missing} does not exist; {there}"):
            measure(q, q, q, heads=["L0H0", missing])
        known = hw.capture(module, heads=["L0H0", missing])
        with pytest.raises(BadValue, match=f"heads: {missing} does not exist; {there}"):
            run(known, module, x)
    for wrong in (3, None, [3], [None]):
        with pytest.raises(BadType, match=r"heads: expected names such as 'L0H2,L1H8', or heads"):
            measure(q, q, q, heads=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"separators": "ab"}, BadType, "separators: expected a collection of token ids.*got 'ab'"),
        ({"separators": ["a"]}, BadType, "separators: expected a collection of token ids.*got 'a'"),
        ({"punctuation": 3}, BadType, "punctuation: expected a collection of token ids.*got 3"),
        ({"punctuation": [-1]}, BadValue, "punctuation: expected token ids.*got -1"),
        ({"want": []}, BadValue, "want: expected at least one name, got none"),
        ({"want": 3}, BadType, "want: expected a collection of names, got int"),
        ({"rows": 3}, BadType, "rows: expected a collection of query indices, got int"),
    ],
)
def test_arguments_of_another_kind_are_refused(
    given: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message), hw.capture(own(), **given):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("empty", [0, 2, 3])
def test_bare_tensors_of_which_nothing_can_be_measured_are_refused(empty: int) -> None:
    sizes = [B, H, L, D]
    sizes[0 if empty == 0 else 2] = 0
    keys = torch.zeros(*sizes)
    q = keys if empty < 3 else torch.zeros(B, H, L, D)
    with pytest.raises(BadValue, match=r"q, k: expected at least one sample, head, query and key"):
        measure(q, keys, keys)
    with pytest.raises(BadType, match="q: expected a tensor, got"):
        measure(q.numpy(), keys, keys)


def test_a_module_that_is_called_with_nothing_goes_on() -> None:
    module, x = own(), torch.randn(B, L, E)
    with torch.no_grad(), hw.capture(module) as seen:
        module(x, x, x)
        before = seen.statistics.layers[Layer("", 0)].above.clone()
        module(x[:0], x[:0], x[:0])
        module(x[:, :0], x[:, :0], x[:, :0])
    assert torch.equal(seen.statistics.layers[Layer("", 0)].above, before)


@pytest.mark.parametrize("padded", [0, 2, 6])
def test_a_sliding_cache_changes_no_number(padded: int) -> None:
    """The first token and its padding go with the window, and are the first all the same."""
    module, x = own(mask=hw.causal() & hw.window(3, 0)).double(), torch.randn(B, L, E).double()
    pad = torch.zeros(B, L, dtype=torch.bool)
    pad[1, :padded] = True
    found = []
    for cache in (GrowingCache(), SlidingCache(3)):
        with torch.no_grad(), hw.capture(module) as seen:
            for some in (slice(0, 4), slice(4, 5), slice(5, 8), slice(8, L)):
                new = x[:, some]
                module(new, new, new, cache=cache, key_padding_mask=pad[:, some])
        found.append(seen.statistics)
    one, other = (
        torch.tensor(
            [each.value(metric, head(n)) for metric in MEASURED for n in range(H)],
            dtype=torch.float64,
        )
        for each in found
    )
    accept(other, one, one)


def test_a_key_of_zeros_is_a_sink_and_no_token() -> None:
    """What add_zero_attn adds to the softmax is what a learned sink of 0 adds."""
    x = torch.randn(B, L, E).double()
    zeros, sink = (
        own(mask=hw.causal(), **each).double()
        for each in ({"add_zero_attn": True}, {"sinks": True})
    )
    sink.load_state_dict({**zeros.state_dict(), "sinks": torch.zeros(H).double()})
    found = []
    for module in (zeros, sink):
        with torch.no_grad(), hw.capture(module) as seen:
            module(x, x, x)
        found.append(seen.statistics.tensors())
    assert found[0].keys() == found[1].keys()
    for name, tensor in found[0].items():
        accept(tensor.double(), found[1][name].double(), found[1][name].double())


def test_appended_keys_of_a_bare_call_are_no_tokens() -> None:
    q = torch.randn(1, H, 4, D).double()
    k = torch.cat((q, torch.zeros(1, H, 1, D).double()), 2)
    mask = appended(hw.padding(torch.tensor([[True, True, True, False]])), 1)
    seen = measure(q, k, k, mask=mask, heads="all")
    for n in range(H):
        extra = seen.weights[head(n)][..., -1].mean()
        value = torch.tensor(seen.statistics.value(UNSPENT, head(n)), dtype=torch.float64)
        accept(value, extra, extra)


def test_padding_may_answer_nan_and_a_token_may_not() -> None:
    module, x = own(), torch.randn(B, L, E)
    pad = torch.tensor([[False] * L, [False] * 8 + [True] * 3])
    x[1, 8:] = torch.nan
    with torch.no_grad(), hw.capture(module) as seen:
        module(x, x, x, key_padding_mask=pad)
    assert seen.statistics.layers[Layer("", 0)].queries == B * L - 3
    x[1, 5] = torch.nan
    with (
        torch.no_grad(),
        pytest.raises(
            BadValue, match=r"model: L0 outputs NaN for tokens .*first at sample 1, query 0"
        ),
        hw.capture(module),
    ):
        module(x, x, x, key_padding_mask=pad)


def test_a_module_that_python_does_not_run_is_refused() -> None:
    with (
        pytest.raises(BadType, match=r"expected a plain nn.Module, got int"),
        hw.capture(3),  # type: ignore[arg-type]
    ):
        pass
    compiled = torch.compile(own(), backend="eager")
    with (
        pytest.raises(BadType, match="got a compiled module; capture the original"),
        hw.capture(compiled),
    ):
        pass


class Fused(nn.Module):
    """Attention in one operation that nobody can look into."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_a_fused_model_says_that_nothing_was_seen_and_what_to_use() -> None:
    model = Fused().eval()
    with (
        pytest.raises(BadValue, match=r"Fused called no attention that can be captured.*use"),
        hw.capture(model),
    ):
        model(torch.randn(1, 2, 3, 4))
