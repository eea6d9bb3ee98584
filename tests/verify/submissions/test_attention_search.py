"""Which classes and functions of a file are attention, by what they do and not by their names."""

import json
from pathlib import Path

import pytest

from headwise.errors import BadFile
from headwise.verify.submissions.attention_search import attentions
from tests.verify.submissions.sixty import CLASS, FUNCTION, RIGHT

START = "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
FOUR = """
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.v_proj, self.out_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def qkv(self, x):
        return [self.heads(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj)]
"""
FUSED = f"""{START}
class Zebra(nn.Module):{FOUR}
    def forward(self, x):
        heads = {{}}(*self.qkv(x))
        return self.out_proj(heads.transpose(1, 2).flatten(2))
"""
OF_HEADS = f"""{START}
class Dot(nn.Module):
    def forward(self, q, k, v):
        return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v

class Whole(nn.Module):{FOUR}
    def forward(self, x):
        return self.out_proj(Dot()(*self.qkv(x)).transpose(1, 2).flatten(2))
"""
DERIVED = f"""{START}
class Base(nn.Module):{FOUR}
    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])

    def forward(self, x):
        q, k, v = self.qkv(x)
        heads = self.scores(q, k).softmax(-1) @ v
        return self.out_proj(heads.transpose(1, 2).flatten(2))

class Derived(Base):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1)
"""
MIXERS = f"""{START}
class Recurrent(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.lstm = nn.LSTM(d_model, d_model, batch_first=True)
    def forward(self, x):
        return self.lstm(x)[0]

class Convolution(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.conv = nn.Conv1d(d_model, d_model, 3, padding=1)
    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)

class MeanAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
    def forward(self, x):
        return self.linear(x) + x.mean(1, keepdim=True)

def average(a, b, c):
    return (a + b + c) / 3
"""
NUMPY = """
import numpy as np

def weights_of(a, b):
    e = np.exp(a @ b.swapaxes(-1, -2) / np.sqrt(a.shape[-1]))
    return e / e.sum(-1, keepdims=True)

def look(q, k, v):
    return weights_of(q, k) @ v
"""
UNUSUAL = f"""{START}
class SelfAttention(nn.Module):
    def __init__(self, an_unheard_of_argument):
        raise ValueError("not this way")
    def forward(self, x):
        return x

class Model(nn.Module):
    def __init__(self, another_one):
        raise ValueError("nor this")
        self.attention = SelfAttention(another_one)
    def forward(self, x):
        return x

class Pooling(nn.Module):
    def __init__(self, a_third):
        raise ValueError("nor that")
    def forward(self, x):
        return x
"""
INSTANCE = (
    START
    + CLASS.format(name="Made", **RIGHT).replace("class Layer", "class _Layer")
    + ("\n\nmade = Made(15, 3)\n")
)

CASES = {
    "a class beside its layer and its feed-forward part": (CLASS.format(name="A", **RIGHT), ["A"]),
    "a function": (FUNCTION.format(scale="", dim=-1), ["attend"]),
    "a fused function under a name without meaning": (
        FUSED.format("F.scaled_dot_product_attention"),
        ["Zebra"],
    ),
    "a fused operator": (
        FUSED.format("torch.ops.aten.scaled_dot_product_attention.default"),
        ["Zebra"],
    ),
    "an attention and the product it is made of": (OF_HEADS, ["Whole"]),
    "a class and one derived from it": (DERIVED, ["Base", "Derived"]),
    "what mixes tokens without attention": (MIXERS, []),
    "functions on arrays": (NUMPY, ["look"]),
    "a class and an instance of it": (INSTANCE, ["Made"]),
}


def searched(folder: Path, source: str, **given) -> dict:
    file = folder / "searched_file.py"
    file.write_text(source)
    return attentions(file, (15, 3), **given)


@pytest.mark.parametrize(("source", "expected"), CASES.values(), ids=CASES)
def test_the_attentions_of_a_file_are_found(tmp_path: Path, source: str, expected) -> None:
    result = searched(tmp_path, source)
    assert result["found"] == expected
    assert result["refused"] == []


def test_others_say_why_in_both_languages(tmp_path: Path) -> None:
    source = CLASS.format(name="A", **RIGHT)
    whys = {item["name"]: item["why"] for item in searched(tmp_path, source)["others"]}
    assert whys["Layer"] == {"en": "contains A", "zh": "包含 A"}
    assert set(whys) == {"FeedForward", "Layer"}
    whys = {item["name"]: item["why"]["en"] for item in searched(tmp_path, MIXERS)["others"]}
    assert whys["Convolution"] == "it computes no number for each pair of tokens"
    assert whys["average"] == "no token depends on another"


def test_what_looks_like_one_and_cannot_be_called_is_refused_and_nothing_else(tmp_path) -> None:
    result = searched(tmp_path, UNUSUAL)
    assert result["found"] == []
    assert [item["name"] for item in result["refused"]] == ["SelfAttention"]
    assert "an_unheard_of_argument" in result["refused"][0]["why"]["en"]
    assert {item["name"] for item in result["others"]} == {"Model", "Pooling"}


def test_names_to_skip_are_not_tried(tmp_path: Path) -> None:
    tried: list[str] = []
    result = searched(tmp_path, DERIVED, skip=("Base",), progress=tried.append)
    assert (result["found"], tried) == (["Derived"], ["Derived"])


def test_a_file_that_does_not_load_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="does not import: ZeroDivisionError"):
        searched(tmp_path, "1 / 0")


def test_an_instance_that_cannot_be_called_is_no_row_beside_its_class(tmp_path: Path) -> None:
    source = INSTANCE.replace("made = Made(15, 3)", "made = Made(32, 4)")
    result = searched(tmp_path, source)
    assert (result["found"], result["refused"]) == (["Made"], [])


NOTEBOOK_CELLS = (
    "%matplotlib inline\n" + FUSED.replace("{}", "F.scaled_dot_product_attention"),
    "data = open('not here.csv').read()",
    "zebra = Zebra(d_model=20, num_heads=7 - 2)\nzebra.q_proj = nn.Linear(20, 3)",
)


def test_a_notebook_is_searched_and_an_instance_gives_way_to_its_class(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": cell} for cell in NOTEBOOK_CELLS]
    file = tmp_path / "lesson.ipynb"
    file.write_text(json.dumps({"cells": cells, "nbformat": 4}), encoding="utf-8")
    result = attentions(file, (15, 3))
    assert result["found"] == ["Zebra"]
    assert result["refused"] == []
