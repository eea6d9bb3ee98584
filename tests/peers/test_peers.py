"""headwise compared with stored results of transformers and PyTorch: output and all gradients.

tests/peers/record.py wrote the results in tests/data/peers. X is the result of headwise, N the
float32 run of the other project, and O its float64 run.
"""

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import headwise as hw
from headwise.verify.oracle.tolerance import accept
from tests.peers.record import RECORDED, record
from tests.peers.stored import accept_again, accept_all, judged, stored

ENGINES = ["eager", "sdpa", "tiled"]


def split(x: Tensor, heads: int) -> Tensor:
    """(B, L, H D) -> (B, H, L, D)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(B, H, L, D) -> (B, L, H D)."""
    return x.transpose(1, 2).flatten(2)


def projected(x: Tensor, of: dict[str, Tensor], name: str, heads: int) -> Tensor:
    return split(F.linear(x, of[f"{name}.weight"], of.get(f"{name}.bias")), heads)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.skipif(not find_spec("transformers"), reason="transformers is not installed")
def test_the_script_finds_the_stored_values_again(name):
    accept_again(record(name), stored(name))


# --- Longformer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_longformer(engine):
    """Rows of global tokens have projections of their own, as its module has."""
    known = stored("longformer")
    real = hw.padding(known["real"])
    seen = hw.window(7, 7) | hw.global_tokens(known["chosen"], symmetric=False)

    def ours(x, of):
        q, k, v = (projected(x, of, name, 3) for name in ("query", "key", "value"))
        near = hw.attend(q, k, v, mask=seen & real, engine=engine)
        q, k, v = (projected(x, of, f"{name}_global", 3) for name in ("query", "key", "value"))
        far = hw.attend(q, k, v, mask=real, engine=engine)
        rows = torch.where(known["chosen"][:, None, :, None], far, near)
        return merge(rows) * known["real"][..., None]

    accept_all(known, ours)


def test_longformer_is_the_module_with_global_projections():
    """Its six projections under their names here; the output projection is its caller's."""
    known = stored("longformer")
    module = hw.MultiheadAttention(15, 3, batch_first=True, global_projections=True)
    mask = (hw.window(7, 7) | hw.global_tokens(known["chosen"])) & hw.padding(known["real"])
    nowhere = {"out_proj.weight": torch.eye(15), "out_proj.bias": torch.zeros(15)}
    module.mask = mask

    def ours(x, of):
        named = dict(nowhere)
        for letter, word in (("q", "query"), ("k", "key"), ("v", "value")):
            for part in ("weight", "bias"):
                named[f"{letter}_proj.{part}"] = of[f"{word}.{part}"]
                named[f"global_proj.{letter}_proj.{part}"] = of[f"{word}_global.{part}"]
        given = {"need_weights": False}
        output = torch.func.functional_call(module, named, (x, x, x), given)[0]
        return output * known["real"][..., None]

    accept_all(known, ours)


def test_longformers_projections_of_global_tokens_are_seen():
    """A check of the check: one projection for all is not accepted."""
    known = stored("longformer")
    pattern = hw.window(7, 7) | hw.global_tokens(known["chosen"])

    def wrong(x, of):
        q, k, v = (projected(x, of, name, 3) for name in ("query", "key", "value"))
        rows = hw.attend(q, k, v, mask=pattern & hw.padding(known["real"]))
        return merge(rows) * known["real"][..., None]

    assert not judged(known, wrong).accepted


# --- Reformer ------------------------------------------------------------------------------------

REFORMERS = ["reformer_1", "reformer_1_causal", "reformer_3_padded", "reformer_3_causal_padded"]
CHUNK = 4


def times_met(buckets: Tensor) -> Tensor:
    """How often query i meets key j over its rounds, (B, H, L, L), pair by pair.

    Its rounds lie one behind the other: the first chunk of a round looks at the last of the one
    before, that of the first round at the last of all.
    """
    batch, heads, _, length = buckets.shape
    met = torch.zeros(batch, heads, length, length)
    for b in range(batch):
        for h in range(heads):
            order = buckets[b, h].flatten().argsort(stable=True) % length
            chunks = order.view(-1, CHUNK)
            for number, chunk in enumerate(chunks):
                for i in chunk:
                    for j in torch.cat((chunk, chunks[number - 1])):
                        met[b, h, i, j] += 1
    return met


def reformed(known, name, mask, engine="eager"):
    """Its attention under a mask: shared QK, keys normalised with its epsilon."""
    whole = mask & hw.padding(known["real"])

    def ours(x, of):
        q, v = projected(x, of, "query_key", 3), projected(x, of, "value", 3)
        k = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6)
        seen = hw.causal() & whole if "causal" in name else whole
        return merge(hw.attend(q, k, v, mask=seen, engine=engine)) * known["real"][..., None]

    return ours


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", REFORMERS)
def test_reformer_under_its_own_buckets(name, engine):
    """A pair that it meets n times weighs n times, ln n more in the score; its own key weighs 0
    wherever it sees another, -1e5 here as there."""
    known = stored(name)
    own = -1e5 * torch.eye(known["x"].shape[1])
    met = hw.from_tensor(times_met(known["buckets"]).log() + own, "b h q k")
    accept_all(known, reformed(known, name, met, engine))


@pytest.mark.parametrize("name", REFORMERS)
def test_reformer_with_every_pair_counted_once_differs_only_with_several_rounds(name):
    """The paper divides by N_ij, how often a pair is met; here too; transformers does not."""
    known = stored(name)
    met = times_met(known["buckets"])
    union = met.clamp(max=1).log() - 1e5 * torch.eye(known["x"].shape[1])
    verdict = judged(known, reformed(known, name, hw.from_tensor(union, "b h q k")))
    assert verdict.accepted == (met.max() == 1)


# --- T5, BLOOM, Llama, GPT-J ---------------------------------------------------------------------


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 20), (16, 300)])
def test_t5_buckets(both, buckets, far):
    position = hw.T5Bias(1, num_buckets=buckets, max_distance=far, bidirectional=both)
    known = stored("t5_buckets")[f"{'both' if both else 'one'}.{buckets}.{far}"]
    assert torch.equal(position.bucket(torch.arange(-300, 301)), known)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_t5_attention(kind, engine):
    known, both = stored(f"t5_{kind}"), kind == "encoder"
    position = hw.T5Bias(3, num_buckets=8, max_distance=11, bidirectional=both)

    def ours(x, of):
        position.table = of["relative_attention_bias.weight"]
        q, k, v = (projected(x, of, name, 3) for name in "qkv")
        mask = None if both else hw.causal()
        rows = hw.attend(q, k, v, mask=mask, position=position, scale=1.0, engine=engine)
        return F.linear(merge(rows), of["o.weight"])

    accept_all(known, ours)
    later = position.bias(torch.zeros(1, 3, 3, 5), torch.arange(8, 11), torch.arange(11), 1.0)
    assert torch.equal(later, known["later"])


@pytest.mark.parametrize("heads", [1, 8, 12, 71])
def test_bloom_slopes(heads):
    known = stored("bloom_slopes")[str(heads)]
    exact = hw.ALiBi(heads).slopes()
    accept(known, exact.float(), exact)


@pytest.mark.parametrize("engine", ENGINES)
def test_bloom_attention(engine):
    """It adds slope times the key's place, which in a row differs by a number from minus slope
    times the distance."""
    known = stored("bloom")

    def ours(x, of):
        fused = F.linear(x, of["query_key_value.weight"], of["query_key_value.bias"])
        q, k, v = fused.unflatten(-1, (3, 3, 5)).permute(3, 0, 2, 1, 4)
        mask = hw.causal() & hw.padding(known["real"])
        rows = merge(hw.attend(q, k, v, mask=mask, position=hw.ALiBi(3), engine=engine))
        output = F.linear(rows, of["dense.weight"], of["dense.bias"])
        return output * known["real"][..., None]

    accept_all(known, ours)


def rotated(known, kind, pairs, engine="eager"):
    """Llama's or GPT-J's attention with one of the pairings."""
    heads, dim, turned, last = (6, 10, 10, "o_proj") if kind == "llama" else (3, 10, 6, "out_proj")
    places = known["places"]
    position = hw.Rotary(dim, pairs=pairs, rotary_dim=turned).at(places, places)

    def ours(x, of):
        groups = 3
        q = projected(x, of, "q_proj", heads)
        k, v = projected(x, of, "k_proj", groups), projected(x, of, "v_proj", groups)
        rows = hw.attend(q, k, v, mask=hw.causal(), position=position, engine=engine)
        return F.linear(merge(rows), of[f"{last}.weight"])

    return ours


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "pairs"), [("llama", "halves"), ("gptj", "neighbours")])
def test_rotary_attention(kind, pairs, engine):
    """Halves and neighbours, all of a head and a part, a row far in and one after padding."""
    known = stored(kind)
    accept_all(known, rotated(known, kind, pairs, engine))


@pytest.mark.parametrize(("kind", "pairs"), [("llama", "neighbours"), ("gptj", "halves")])
def test_the_other_pairing_is_seen(kind, pairs):
    known = stored(kind)
    assert not judged(known, rotated(known, kind, pairs)).accepted


# --- PyTorch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
def test_torchs_module(engine):
    known = stored("torch_module")
    module = hw.MultiheadAttention(15, 3, batch_first=True, engine=engine)
    rows = {"q": slice(0, 15), "k": slice(15, 30), "v": slice(30, 45)}

    def ours(x, of):
        named = {"out_proj.weight": of["out_proj.weight"], "out_proj.bias": of["out_proj.bias"]}
        for letter, part in rows.items():
            named[f"{letter}_proj.weight"] = of["in_proj_weight"][part]
            named[f"{letter}_proj.bias"] = of["in_proj_bias"][part]
        masks = {"attn_mask": known["blocked"], "key_padding_mask": known["padded"]}
        given = masks | {"need_weights": False}
        return torch.func.functional_call(module, named, (x, x, x), given)[0]

    accept_all(known, ours)


@pytest.mark.parametrize("engine", ENGINES)
def test_torchs_fused_attention(engine):
    known = stored("torch_fused")
    mask = hw.from_tensor(known["added"], "b h q k")
    accept_all(known, lambda q, of: hw.attend(q, of["k"], of["v"], mask=mask, engine=engine))
