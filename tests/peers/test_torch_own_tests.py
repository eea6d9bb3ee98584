"""The script that runs PyTorch's own test files, on a file of the same kind."""

import re
from pathlib import Path

import pytest

from tests.peers.torch_own_tests import FILES, REASONS, reason, report, uses_attention

ROOT = Path(__file__).parents[2]
FILE = """
import unittest
import torch
from torch import nn
from torch.nn import MultiheadAttention

class TestAttention(unittest.TestCase):
    def test_right(self):
        x = torch.ones(2, 3, 4)
        self.assertEqual(MultiheadAttention(4, 2)(x, x, x)[0].shape, x.shape)

    def test_packed(self):
        layer, x = MultiheadAttention(4, 2), torch.randn(2, 3, 4)
        nn.init.eye_(layer.in_proj_weight[:4])
        layer(x, x, x)[0].sum().backward()
        self.assertIsNotNone(layer.in_proj_weight.grad)

    def test_encoder(self):
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape).cos())
        x = torch.arange(8.0).view(2, 1, 4).sin()
        found = round(layer(x)[0, 0, 0].item(), 4)
        self.assertEqual(found, RIGHT, "not equal")

    def test_subtests(self):
        for size in (3, 4):
            with self.subTest(size=size):
                layer, x = MultiheadAttention(4, 2), torch.ones(1, 1, size)
                if size == 3:
                    with self.assertRaises(AssertionError):
                        layer(x, x, x)

    def test_wrong_as_it_stands(self):
        self.fail("never")

    @unittest.skip("never")
    def test_skipped(self):
        pass
"""


def right() -> float:
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape).cos())
    return round(layer(torch.arange(8.0).view(2, 1, 4).sin())[0, 0, 0].item(), 4)


@pytest.mark.slow
def test_the_table_of_a_small_file(tmp_path):
    (tmp_path / FILES[0]).write_text(FILE.replace("RIGHT", str(right())))
    assert report(tmp_path, 120.0).splitlines() == [
        f"{FILES[0]}: 4 of 6 pass as they stand",
        "  class: 1 of 4",
        "       1 numbers set by the order of parameters()",
        "       1 the packed in_proj_weight",
        "       1 another type of error, or none",
        "  convert: 3 of 4",
        "       1 another type of error, or none",
    ]


def test_without_files_it_says_which():
    assert report(ROOT, 1.0) == f"none of {', '.join(FILES)} is in {ROOT}"


@pytest.mark.parametrize(("name", "pattern", "line"), REASONS, ids=lambda value: value[:12])
def test_every_reason_is_a_line_of_the_differences(name, pattern, line):
    table = (ROOT / "docs" / "differences.md").read_text("utf-8")
    assert re.search(rf"^\| .*{re.escape(line)}", table, re.MULTILINE), name
    re.compile(pattern)


def test_reasons():
    assert reason("AssertionError: ValueError not raised") == "another type of error, or none"
    assert reason('AssertionError: "a" does not match "b"') == "another text of an error"
    assert reason("KeyError: 3") == "not explained: KeyError: 3"


def test_tests_of_sdpa_are_left_out():
    path = Path("test_transformers.py")
    assert not uses_attention(path, "TestSDPA.test_scaled_dot_product")
    assert uses_attention(path, "TestTransformers.test_encoder_is_causal")
    assert uses_attention(Path("test_native_mha.py"), "TestMHA.test_fused")
