import io
import pickle
import warnings
import zipfile

import pytest
import torch
from safetensors.torch import save
from torch import nn

import headwise as hw
from headwise.errors import BadFile, BadValue
from headwise.explain import call_options
from headwise.explain.call_options import load_projections, seeded_projections
from headwise.explain.trace import Projections, trace
from headwise.verify.oracle.tolerance import accept

LENGTH, EMBED, HEADS = 5, 14, 7


def torch_bytes(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def module(**options):
    made = nn.MultiheadAttention(EMBED, HEADS, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def check_same(projections, made):
    """Traced with these weights, X gives what the module gives."""
    x = torch.randn(LENGTH, EMBED, dtype=torch.float64)
    traced = trace(x, HEADS, projections=projections)
    output, per_head = made(x, x, x, average_attn_weights=False)
    accept(traced.get("output"), output, output)
    for h in range(HEADS):
        accept(traced.get("softmax", h + 1), per_head[h], per_head[h])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["safetensors", "pt", "pth"])
def test_the_weights_of_a_module_of_torch(tmp_path, bias, kind):
    made = module(bias=bias)
    state = made.state_dict()
    path = tmp_path / f"w.{kind}"
    path.write_bytes(save(state) if kind == "safetensors" else torch_bytes(state))
    check_same(load_projections(str(path)), made)


def test_names_that_stand_apart(tmp_path):
    made = module(kdim=EMBED, vdim=EMBED)
    state = made.state_dict()
    q, k, v = state.pop("in_proj_weight").chunk(3)
    apart = dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), (q, k, v), strict=True))
    path = tmp_path / "w.pt"
    path.write_bytes(torch_bytes({**state, **apart}))
    check_same(load_projections(str(path)), made)
    biases = dict(zip("qkv", state.pop("in_proj_bias").chunk(3), strict=True))
    linear = {f"{n[0]}_proj.weight": w for n, w in apart.items()}
    linear |= {f"{n}_proj.bias": b for n, b in biases.items()}
    path.write_bytes(torch_bytes({"state_dict": {**state, **linear}}))
    check_same(load_projections(str(path)), made)


def test_one_layer_of_a_model_is_found_by_its_prefix(tmp_path):
    first, second = module(), module()
    state = {
        f"layers.{i}.self_attn.{n}": t
        for i, m in ((0, first), (1, second))
        for n, t in m.state_dict().items()
    }
    path = tmp_path / "w.safetensors"
    path.write_bytes(save(state))
    check_same(load_projections(f"{path}:layers.1.self_attn"), second)
    with pytest.raises(BadFile, match=r"one of its 2 attentions \(layers.0.self_attn, layers.1"):
        load_projections(str(path))
    with pytest.raises(BadFile, match=r"got 'layers.7'; write w.safetensors:prefix"):
        load_projections(f"{path}:layers.7")
    alone = {n: t for n, t in state.items() if n.startswith("layers.0")}
    path.write_bytes(save(alone))
    check_same(load_projections(str(path)), first)


@pytest.mark.parametrize("init", ["xavier_uniform", "xavier_normal", "orthogonal", "torch"])
def test_a_seed_gives_the_weights_of_our_module(init):
    before = torch.get_rng_state()
    drawn = seeded_projections(EMBED, HEADS, 3, init)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(3)
    layer = hw.MultiheadAttention(EMBED, HEADS, bias=False, init=init)
    assert torch.equal(drawn.k, layer.k_proj.weight.double())
    assert torch.equal(drawn.out, layer.out_proj.weight.double())
    assert not torch.equal(drawn.q, seeded_projections(EMBED, HEADS, 4, init).q)


def test_a_seed_or_a_word_that_is_none_is_refused():
    with pytest.raises(
        BadValue, match=r"seed: expected a whole number from 0 to 2\^63 - 1, got -1"
    ):
        seeded_projections(EMBED, HEADS, -1, "orthogonal")
    with pytest.raises(BadValue, match=r"heads: 3 heads cannot share the 14 columns of x evenly"):
        seeded_projections(EMBED, 3, 0, "orthogonal")
    with pytest.raises(BadValue, match=r"init: unknown 'he'"):
        seeded_projections(EMBED, HEADS, 0, "he")
    with pytest.raises(BadValue, match=r"at most 4096 columns"):
        seeded_projections(4097, 1, 0, "orthogonal")


MARK = "headwise-was-here"
"""The file that exists when a pickle was run."""


class Evil:
    def __reduce__(self):
        return (open, (MARK, "w"))


EYE = torch.eye(4)


def changed(**tensors):
    return torch_bytes({**WHOLE, **{name.replace("__", "."): t for name, t in tensors.items()}})


WHOLE = {"in_proj_weight": torch.cat([EYE] * 3), "out_proj.weight": EYE}

BAD = {
    "w.bin": (b"x", r"unknown file type '.bin'; expected .safetensors"),
    "pickle.pt": (pickle.dumps({"a": 1}), r"never unpickled"),
    "evil.pt": (pickle.dumps(Evil()), r"never unpickled"),
    "evil2.pt": (torch_bytes({"in_proj_weight": Evil()}), r"never unpickled"),
    "junk.pth": (b"\x00\x01junk", r"never unpickled"),
    "empty.pt": (b"", r"never unpickled"),
    "list.pt": (torch_bytes([EYE]), r"expected a state_dict, got list"),
    "junk.safetensors": (b"\x00" * 30, r"not a usable safetensors file"),
    "other.safetensors": (save({"a": EYE}), r"has no tensor in_proj_weight or q_proj.weight"),
    "noout.safetensors": (
        save({"in_proj_weight": WHOLE["in_proj_weight"]}),
        r"has no tensor out_proj.weight",
    ),
    "nok.pt": (torch_bytes({"q_proj.weight": EYE}), r"has no tensor k_proj.weight"),
    "thirds.pt": (changed(in_proj_weight=torch.ones(7, 4)), r"one below the other"),
    "bias.pt": (changed(in_proj_bias=torch.ones(9)), r"expected 12 numbers, got"),
    "axes.pt": (changed(out_proj__weight=torch.ones(4)), r"with 2 axes, got"),
    "ints.pt": (changed(out_proj__weight=EYE.long()), r"finite floating point"),
    "nan.pt": (changed(out_proj__weight=EYE * torch.nan), r"finite floating point"),
    "sparse.pt": (
        changed(out_proj__weight=EYE.to_sparse()),
        r"finite floating point|never unpickled",
    ),
    "none.pt": (changed(out_proj__weight=torch.ones(0, 4)), r"1 to .* numbers, got 0"),
    "extra.pt": (changed(bias_k=EYE, bias_v=EYE), r"has bias_k and bias_v"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_fault_is_one_clear_error(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile, match=message) as caught:
        load_projections(str(tmp_path / name))
    text = caught.value.text
    assert not (tmp_path / MARK).exists()
    assert text.en.startswith("weights: ")
    assert name in text.en
    assert name in text.zh


def test_an_archive_that_would_grow_too_large_is_not_opened(tmp_path, monkeypatch):
    path = tmp_path / "w.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(100_000))
    monkeypatch.setattr(call_options, "MOST_BYTES", 50_000)
    with pytest.raises(BadFile, match=r"at most 50,000 bytes when unpacked, got 100,000"):
        load_projections(str(path))


def test_a_damaged_archive_is_refused(tmp_path):
    path = tmp_path / "w.pt"
    content = torch_bytes(WHOLE)
    path.write_bytes(content[:50] + content[-22:])
    with pytest.raises(BadFile, match=r"damaged"):
        load_projections(str(path))


def test_one_projection_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    path.write_bytes(save(WHOLE))
    monkeypatch.setattr(call_options, "MOST_NUMBERS", 20)
    with pytest.raises(BadFile, match=r"in_proj_weight: expected 1 to 20 numbers, got 48"):
        load_projections(str(path))


def test_weights_of_another_size_are_refused_where_they_are_used(tmp_path):
    (tmp_path / "w.pt").write_bytes(torch_bytes(WHOLE))
    loaded = load_projections(str(tmp_path / "w.pt"))
    assert isinstance(loaded, Projections)
    with pytest.raises(BadValue, match=r"weights: q must be \(4, 5\) for an input of 5 columns"):
        trace(torch.ones(3, 5), 2, projections=loaded)


def test_a_bare_pickle_is_refused_without_a_warning(tmp_path):
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"x": print}, protocol=4))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pytest.raises(BadFile, match="never unpickled"):
            call_options.load_projections(str(tmp_path / "a.pt"))
    assert [str(warning.message) for warning in heard] == []
