"""Sixty files as a class hands them in: right, wrong, and bad in many ways."""

from pathlib import Path

CLASS = """\
import math
import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.proj = nn.Linear(d_model, d_model)

    def heads(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        weights = torch.softmax(q @ k.transpose(-2, -1) {scale}, dim={dim})
        return self.proj((weights @ v){merge}.reshape(x.shape))


class FeedForward(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.linear(x).relu()


class Layer(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attention = {name}(d_model, num_heads)
        self.feed_forward = FeedForward(d_model)

    def forward(self, x):
        return x + self.feed_forward(x + self.attention(x))
"""
FUNCTION = """\
import math
import torch


def attend(q, k, v):
    scores = q @ k.transpose(-2, -1) {scale}
    return scores.softmax({dim}) @ v
"""
RIGHT = {"scale": "/ math.sqrt(self.head_dim)", "dim": "-1", "merge": ".transpose(1, 2)"}
WRONG = {
    "no_scale": {**RIGHT, "scale": ""},
    "softmax_over_queries": {**RIGHT, "dim": "-2"},
    "merge_without_transpose": {**RIGHT, "merge": ""},
}
BAD = {
    "syntax_error": "def attend(q, k, v:\n    return v\n",
    "no_such_import": "import a_package_that_nobody_has\n",
    "raises": "raise RuntimeError('it worked at home')\n",
    "exits": "import sys\nsys.exit(3)\n",
    "leaves": "import os\nos._exit(7)\n",
    "crashes": "import ctypes\nctypes.string_at(0)\n",
    "hangs": "import time\ntime.sleep(1000)\n",
    "loops": "while True:\n    pass\n",
    "floods": "while True:\n    print('flood' * 1000)\n",
    "empty": "",
    "no_text": "\x00\x01\x02",
    "replaces": FUNCTION.format(scale="", dim=-1) + "\ntorch.Tensor.softmax = lambda x, dim: x\n",
    "hangs_when_called": "import time\n\n\ndef attend(q, k, v):\n    time.sleep(1000)\n",
    "leaves_when_called": "import os\n\n\ndef attend(q, k, v):\n    os._exit(0)\n",
    "=cmd|' '!A1": "def attend(q, k, v):\n    return undefined\n",
}
"""Sources by the name of their file: each is bad in another way."""


def write(folder: Path, count: int = 60) -> dict[str, str]:
    """Write that many files; for each by its name the mistake, "right" or "bad"."""
    kinds: dict[str, str] = {}
    for name, source in BAD.items():
        (folder / f"{name}.py").write_text(source)
        kinds[f"{name}.py"] = "bad"
    wrong = list(WRONG)
    for i in range(count - len(BAD)):
        mistake = wrong[i % 6] if i % 6 < 3 else "right"
        parts = WRONG.get(mistake, RIGHT)
        file = folder / f"student_{i:02}.py"
        if i % 4 == 3 and mistake != "merge_without_transpose":
            own = {**parts, "scale": parts["scale"].replace("self.head_dim", "q.shape[-1]")}
            file.write_text(FUNCTION.format(**own))
        else:
            file.write_text(CLASS.format(name=f"Attention{i}", **parts))
        kinds[file.name] = mistake
    return kinds
