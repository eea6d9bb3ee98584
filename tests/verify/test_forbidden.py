"""What a target may not use is noticed while it runs and in its source, and nothing else is."""

from pathlib import Path

import pytest

from headwise.errors import BadValue
from headwise.verify import verify
from headwise.verify.process import Request, isolated
from headwise.verify.process.forbidden import Watch, resolve
from headwise.verify.report.formats import faults
from headwise.verify.target import load

START = """\
import math
import torch.nn.functional as F
from torch import nn
from torch.nn import MultiheadAttention as M
from torch.nn.functional import *

def product(q, k, v):
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v
"""
MHA, SDPA, SOFTMAX = (
    "torch.nn.MultiheadAttention",
    "F.scaled_dot_product_attention",
    "torch.softmax",
)

CLASS = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.inner = M(embed_dim, num_heads, batch_first=True)
    def forward(self, x):
        return self.inner(x, x, x{more})[0]
"""
OVERLOAD = "torch.ops.aten.scaled_dot_product_attention.default"
HIDDEN = "getattr(F, 'scaled_dot_' + 'product_attention')"
BRANCH = """
def f(q, k, v):
    if q.shape[-2] > 10**6:
        return F.scaled_dot_product_attention(q, k, v)
    return product(q, k, v)
"""
HELPER = """
def fast(q, k, v):
    return scaled_dot_product_attention(q, k, v)
def f(q, k, v, fast=fast):
    return product(q, k, v)
"""


def calling(name: str) -> str:
    return f"def f(q, k, v):\n    return {name}(q, k, v)\n"


USES = {
    "a call": (calling("F.scaled_dot_product_attention"), SDPA, "runs"),
    "another name": (f"other = {SDPA}\n{calling('other')}", SDPA, "runs"),
    "a name made at run time": (calling(HIDDEN), SDPA, "runs"),
    "an operator": (calling(OVERLOAD.removesuffix(".default")), SDPA, "runs"),
    "an overload of an operator": (calling(OVERLOAD), SDPA, "runs"),
    "a method of tensors": (calling("product"), SOFTMAX, "runs"),
    "a function that a function calls": (
        "def f(q, k, v):\n    s = F.softmax(q @ k.mT / v.shape[-1] ** 0.5, -1)\n    return s @ v\n",
        SOFTMAX,
        "runs",
    ),
    "a module inside": (CLASS.format(more=""), MHA, "runs"),
    "what another module is made of": (CLASS.format(more=", need_weights=False"), SDPA, "runs"),
    "a derived class": ("class f(M):\n    pass\n", MHA, "target"),
    "an instance": ("f = M(15, 3, batch_first=True)\n", MHA, "target"),
    "the function itself": ("f = F.scaled_dot_product_attention\n", SDPA, "target"),
    "a branch that did not run": (BRANCH, SDPA, "source"),
    "a helper that did not run": (HELPER, SDPA, "source"),
}
COMPARISON = """
x = torch.ones(1, 2, 3)
assert f(x, x, x).shape == M(3, 1)(x, x, x)[0].shape
F.scaled_dot_product_attention(x, x, x)
"""
TEST = "def test():\n    assert M(3, 1) and F.scaled_dot_product_attention\n"
DOCSTRING = (
    "def f(q, k, v):\n    'Like F.scaled_dot_product_attention.'\n    return product(q, k, v)\n"
)
HONEST = {
    "nothing": calling("product"),
    "a comparison at the end of the file": calling("product") + COMPARISON,
    "a test that is never called": calling("product") + TEST,
    "a word in a string": DOCSTRING,
}


def uses(folder: Path, source: str, *names: str) -> list[dict]:
    file = folder / "with_forbidden.py"
    file.write_text(START + source)
    with Watch(names) as watch:
        target = load(f"{file}:f")
        assert verify(target).accepted
    return watch.uses(target, f"{file}:f")


@pytest.mark.parametrize(("source", "name", "how"), USES.values(), ids=USES)
def test_a_use_is_noticed_with_its_line(tmp_path: Path, source: str, name: str, how: str) -> None:
    result = uses(tmp_path, source, name)
    assert {(use["name"], use["how"]) for use in result} >= {(name, how)}
    assert {use["file"] for use in result} == {str(tmp_path / "with_forbidden.py")}
    lines = (START + source).splitlines()
    for use in result:
        assert use["text"] == (lines[use["line"] - 1].strip() if use["line"] else "")
        assert use["line"] or use["how"] == "target"


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST)
def test_what_is_no_use_is_not_accused(tmp_path: Path, source: str) -> None:
    assert uses(tmp_path, source, MHA, SDPA) == []


def test_without_names_nothing_is_watched(tmp_path: Path) -> None:
    assert uses(tmp_path, USES["a call"][0]) == []


def test_the_judge_may_use_it_itself(tmp_path: Path) -> None:
    """`torch.nn.MultiheadAttention` is one of the references."""
    with Watch([MHA, SOFTMAX]) as watch:
        assert verify(_mean_of_values()).status == "differs"
    assert watch.hits == {}


def _mean_of_values():
    def mean(q, k, v):
        return v.mean(-2, keepdim=True).expand_as(v)

    return mean


@pytest.mark.parametrize("name", ["", "torch", "torch.nn.None", "no_such_package.f", "nn..x", "3"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(BadValue, match="forbid: expected a class or function that can be imported"):
        resolve(name)


def test_the_report_has_it_and_is_not_accepted(tmp_path: Path) -> None:
    file = tmp_path / "fused.py"
    file.write_text(START + USES["a call"][0])
    report = isolated(Request(f"{file}:f", forbid=(SDPA, MHA)))
    assert faults(report) == []
    assert (report["status"], report["accepted"]) == ("accepted", False)
    assert [(use["name"], use["how"]) for use in report["forbidden"]] == [(SDPA, "runs")]
    assert sum(check["seconds"] for check in report["checks"]) > 0
