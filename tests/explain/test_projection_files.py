import io
import json
import pickle
import warnings
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

import headwise as hw
from headwise.errors import BadFile, BadValue
from headwise.explain import weight_files
from headwise.explain.call_options import seeded_projections
from headwise.explain.trace import Projections, trace
from headwise.explain.weights import load_projections
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
    with pytest.raises(
        BadFile, match=r"one of 2 attention modules in the file \(layers.0.self_attn, layers.1"
    ):
        load_projections(str(path))
    with pytest.raises(BadFile, match=r"got 'layers.7'; write w.safetensors:PREFIX"):
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
    with pytest.raises(BadValue, match=r"seed: expected an integer from 0 to 2\^63 - 1, got -1"):
        seeded_projections(EMBED, HEADS, -1, "orthogonal")
    with pytest.raises(
        BadValue, match=r"heads: the 14 columns of x cannot be divided into 3 equal heads"
    ):
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
    "w.bin": (b"x", r"unknown file extension '.bin'; expected one of .safetensors"),
    "pickle.pt": (pickle.dumps({"a": 1}), r"never unpickled"),
    "evil.pt": (pickle.dumps(Evil()), r"never unpickled"),
    "evil2.pt": (torch_bytes({"in_proj_weight": Evil()}), r"never unpickled"),
    "junk.pth": (b"\x00\x01junk", r"never unpickled"),
    "empty.pt": (b"", r"never unpickled"),
    "list.pt": (torch_bytes([EYE]), r"expected a state_dict, got list"),
    "junk.safetensors": (b"\x00" * 30, r"cannot read safetensors file"),
    "other.safetensors": (save({"a": EYE}), r"no projections with known names"),
    "nok.pt": (torch_bytes({"q_proj.weight": EYE}), r"has only q_proj.weight and lacks k, v"),
    "thirds.pt": (changed(in_proj_weight=torch.ones(7, 4)), r"stacked in 3 H D rows"),
    "bias.pt": (changed(in_proj_bias=torch.ones(9)), r"q_bias: expected 4 numbers, got"),
    "axes.pt": (changed(out_proj__weight=torch.ones(4)), r"with 2 axes, got"),
    "ints.pt": (changed(out_proj__weight=EYE.long()), r"finite floating point"),
    "nan.pt": (changed(out_proj__weight=EYE * torch.nan), r"finite floating point"),
    "sparse.pt": (
        changed(out_proj__weight=EYE.to_sparse()),
        r"finite floating point|never unpickled",
    ),
    "none.pt": (changed(out_proj__weight=torch.ones(0, 4)), r"1 to .* numbers, got 0"),
    "extra.pt": (changed(bias_k=EYE, bias_v=EYE), r"contains bias_k and bias_v"),
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
    monkeypatch.setattr(weight_files, "MOST_BYTES", 50_000)
    with pytest.raises(BadFile, match=r"at most 50,000 bytes when decompressed, got 100,000"):
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
    monkeypatch.setattr(weight_files, "MOST_NUMBERS", 20)
    with pytest.raises(BadFile, match=r"in_proj_weight: expected 1 to 20 numbers, got 48"):
        load_projections(str(path))


def test_weights_of_another_size_are_refused_where_they_are_used(tmp_path):
    (tmp_path / "w.pt").write_bytes(torch_bytes(WHOLE))
    loaded = load_projections(str(tmp_path / "w.pt"))
    assert isinstance(loaded, Projections)
    with pytest.raises(
        BadValue, match=r"weights: q must have shape \(4, 5\) for an input with 5 columns"
    ):
        trace(torch.ones(3, 5), 2, projections=loaded)


def test_a_bare_pickle_is_refused_without_a_warning(tmp_path):
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"x": print}, protocol=4))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pytest.raises(BadFile, match="never unpickled"):
            load_projections(str(tmp_path / "a.pt"))
    assert [str(warning.message) for warning in heard] == []


def paper(made):
    """The matrices and biases of a module of torch by the names of the paper, Q = X W + b."""
    q, k, v = made.in_proj_weight.detach().chunk(3)
    named = {f"W_{letter}": w.T.clone() for letter, w in zip("QKV", (q, k, v), strict=True)}
    named["W_O"] = made.out_proj.weight.detach().T.clone()
    if made.in_proj_bias is not None:
        biases = made.in_proj_bias.detach().chunk(3)
        named |= {f"b_{letter}": b.clone() for letter, b in zip("QKV", biases, strict=True)}
        named["b_O"] = made.out_proj.bias.detach().clone()
    return named


def as_csv(named):
    lines = []
    for name, values in named.items():
        rows = values.tolist() if values.dim() == 2 else [values.tolist()]
        lines += [name, *(",".join(map(repr, row)) for row in rows), ""]
    return "\n".join(lines).encode("utf-16")


def as_npz(named):
    buffer = io.BytesIO()
    np.savez(buffer, **{name: values.numpy() for name, values in named.items()})
    return buffer.getvalue()


def as_markdown(named):
    rows = {n: v.tolist() if v.dim() == 2 else [v.tolist()] for n, v in named.items()}
    return "\n\n".join(f"{name} = {values}" for name, values in rows.items()).encode("utf-16")


WRITERS = {
    "w.npz": as_npz,
    "w.csv": as_csv,
    "w.json": lambda named: json.dumps({n: v.tolist() for n, v in named.items()}).encode(),
    "nested.json": lambda named: json.dumps(
        {"layer": {"attn": {n: v.tolist() for n, v in named.items()}}}
    ).encode(),
    "w.md": as_markdown,
    "w.safetensors": lambda named: save({n: v.contiguous() for n, v in named.items()}),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", WRITERS)
def test_the_weights_of_the_paper_in_every_type(tmp_path, name, bias):
    made = module(bias=bias)
    (tmp_path / name).write_bytes(WRITERS[name](paper(made)))
    check_same(load_projections(str(tmp_path / name)), made)


def test_a_file_for_each_matrix(tmp_path):
    made, notes = module(bias=False), []
    files = []
    for name, values in paper(made).items():
        files.append(str(tmp_path / f"{name}.csv"))
        text = "\n".join(",".join(map(repr, row)) for row in values.tolist())
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    check_same(load_projections(",".join(files), notify=notes.append), made)
    assert notes == []
    without = load_projections(",".join(files[:3]), notify=notes.append)
    assert torch.equal(without.out, torch.eye(EMBED, dtype=torch.float64))
    assert "the output projection W^O is missing; the identity is used" in notes[0].en


def test_one_matrix_for_each_head(tmp_path):
    made = module(bias=False)
    named = paper(made)
    apart = {
        f"{name}{h + 1}": part
        for name in ("W_Q", "W_K", "W_V")
        for h, part in enumerate(named[name].chunk(HEADS, 1))
    }
    (tmp_path / "w.json").write_text(
        json.dumps({n: v.tolist() for n, v in {**apart, "W_O": named["W_O"]}.items()}), "utf-8"
    )
    check_same(load_projections(str(tmp_path / "w.json")), made)


OTHERS = {
    "llama": ("model.layers.0.self_attn.{}_proj", "model.layers.0.self_attn.o_proj"),
    "bert": ("encoder.layer.0.attention.self.{long}", "encoder.layer.0.attention.output.dense"),
    "diffusers": ("mid.attn1.to_{}", "mid.attn1.to_out.0"),
    "distilbert": ("transformer.attention.{}_lin", "transformer.attention.out_lin"),
    "t5": ("block.0.layer.0.SelfAttention.{}", "block.0.layer.0.SelfAttention.o"),
    "original llama": ("layers.0.attention.w{}", "layers.0.attention.wo"),
    "annotated": ("self_attn.linears.{index}", "self_attn.linears.3"),
    "by hand": ("W_{}", "W_o"),
    "camel": ("mha.W{}", "mha.Wo"),
}
LONG = {"q": "query", "k": "key", "v": "value"}


@pytest.mark.parametrize("names", OTHERS)
def test_the_names_of_other_modules(tmp_path, names):
    made = module()
    pattern, out = OTHERS[names]
    state = {f"{out}.weight": made.out_proj.weight, f"{out}.bias": made.out_proj.bias}
    weights, biases = made.in_proj_weight.chunk(3), made.in_proj_bias.chunk(3)
    for index, letter in enumerate("qkv"):
        name = pattern.format(letter, long=LONG[letter], index=index)
        state |= {f"{name}.weight": weights[index], f"{name}.bias": biases[index]}
    state["encoder.layer.0.attention.output.LayerNorm.weight"] = torch.ones(EMBED)
    state["encoder.layer.0.intermediate.dense.weight"] = torch.ones(EMBED, EMBED)
    state = {name: value.detach().clone() for name, value in state.items()}
    (tmp_path / "w.safetensors").write_bytes(save(state))
    check_same(load_projections(str(tmp_path / "w.safetensors")), made)


@pytest.mark.parametrize(
    ("fused", "out", "arrange"),
    [
        ("blocks.0.attn.qkv", "blocks.0.attn.proj", lambda w: w),
        ("attn.Wqkv", "attn.Wo", lambda w: w),
        ("h.0.attn.c_attn", "h.0.attn.c_proj", lambda w: w),
        ("h.0.attn.query_key_value", "h.0.attn.dense", None),
    ],
)
def test_fused_weights(tmp_path, fused, out, arrange):
    made = module()
    packed, bias = made.in_proj_weight.detach(), made.in_proj_bias.detach()
    if arrange is None:  # grouped by head
        packed = packed.unflatten(0, (3, HEADS, -1)).transpose(0, 1).flatten(0, 2)
        bias = bias.unflatten(0, (3, HEADS, -1)).transpose(0, 1).flatten()
    state = {f"{fused}.weight": packed, f"{fused}.bias": bias}
    state |= {f"{out}.weight": made.out_proj.weight, f"{out}.bias": made.out_proj.bias}
    state = {name: value.detach().clone() for name, value in state.items()}
    (tmp_path / "w.pt").write_bytes(torch_bytes(state))
    check_same(load_projections(str(tmp_path / "w.pt"), heads=HEADS), made)
    if arrange is None:
        with pytest.raises(BadFile, match=r"42 rows are grouped by head; pass .* --heads"):
            load_projections(str(tmp_path / "w.pt"))


def test_gpt2_has_its_matrices_the_other_way_round(tmp_path):
    made = module()
    state = {"attn.c_attn.weight": made.in_proj_weight.T, "attn.c_attn.bias": made.in_proj_bias}
    state |= {"attn.c_proj.weight": made.out_proj.weight.T, "attn.c_proj.bias": made.out_proj.bias}
    state = {name: value.detach().clone() for name, value in state.items()}
    (tmp_path / "w.pt").write_bytes(torch_bytes(state))
    check_same(load_projections(str(tmp_path / "w.pt")), made)


def test_shared_key_and_value_heads(tmp_path):
    made = hw.MultiheadAttention(8, 4, num_kv_heads=2, batch_first=True, dtype=torch.float64)
    (tmp_path / "w.safetensors").write_bytes(save(made.state_dict()))
    notes = []
    weights = load_projections(str(tmp_path / "w.safetensors"), heads=4, notify=notes.append)
    x = torch.randn(3, 8, dtype=torch.float64)
    expected, _ = made(x[None], x[None], x[None])
    found = trace(x, 4, projections=weights).get("output")
    accept(found, expected[0], expected[0])
    assert "query heads (8 rows) share the key/value heads (4 rows)" in notes[0].en


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.npz", b"PK\x03\x04junk", r"archive is damaged"),
        ("w.json", b"[[1]]", r'expected {"W_Q"'),
        ("w.json", b'{"W_Q": [["a"]]}', r"expected a number in row 0"),
        ("w.csv", b"1,2\n", r"only the name of an array, such as W_Q, above line 1"),
        ("w.csv", b"W_Q\n1,2\n3\n", r"expected 2 cells in line 3"),
        ("w.csv", b"W_Q\n1\nW_K\n1\n", r"has only W_K, W_Q and lacks v"),
        ("w.md", b"nothing", r"no projections with known names"),
    ],
)
def test_what_a_person_wrote_is_refused_clearly(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile, match=message):
        load_projections(str(tmp_path / name))


def test_an_archive_of_python_objects_is_never_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "w.npz", W_Q=np.array([Evil()], dtype=object))
    with pytest.raises(BadFile, match=r"never unpickled"):
        load_projections("w.npz")
    assert not (tmp_path / MARK).exists()
