"""Our own attention, bare q, k and v, and models that were converted to it."""

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.call import Call
from headwise.errors import BadType, BadValue
from headwise.heads.capture import measure
from headwise.heads.metrics import ENTROPY, METRICS
from headwise.heads.names import Head, Layer
from headwise.reference import reference
from headwise.verify.budget import accept
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
    with pytest.raises(BadValue, match="projects global tokens apart"), hw.capture(module):
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
        pytest.raises(BadValue, match=r"rows: expected numbers of queries from 0 on, got -1"),
        hw.capture(own(), rows=[-1]),
    ):
        pass


def test_a_module_that_python_does_not_run_is_refused() -> None:
    with (
        pytest.raises(BadType, match="expected a module that Python runs, got int"),
        hw.capture(3),  # type: ignore[arg-type]
    ):
        pass
    compiled = torch.compile(own(), backend="eager")
    with (
        pytest.raises(BadType, match="got a compiled module, which shows nothing of its inside"),
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
        pytest.raises(BadValue, match=r"Fused never called an attention that can be captured.*use"),
        hw.capture(model),
    ):
        model(torch.randn(1, 2, 3, 4))
