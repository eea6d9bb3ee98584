"""Targets that hang, exit, crash or exceed a limit; importing this file is harmless."""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

FORGED = json.dumps(
    {
        "schema": 3,
        "headwise": "0",
        "target": "another.py:f",
        "status": "unusable",
        "accepted": False,
        "error": {"en": "forged", "zh": "伪造"},
    }
)


def forever(q, k, v):
    while True:
        pass


def leaves(q, k, v):
    os._exit(7)


def exits(q, k, v):
    sys.exit(3)


def grows(q, k, v):
    kept = []
    while True:
        kept.append(torch.ones(1 << 22))


def floods(q, k, v):
    while True:
        os.write(1, b"flood\n" * 100)


def crashes(q, k, v):
    ctypes.string_at(0)


def late(q, k, v, calls=[]):  # noqa: B006
    calls.append(1)
    if len(calls) > 5:
        time.sleep(1000)
    return v


def forks(q, k, v):
    if os.fork() == 0:
        time.sleep(1000)
    return v


def writes(q, k, v):
    Path("left_behind").write_text("here")
    print("written in", Path.cwd())  # noqa: T201
    return v


def forges(q, k, v):
    for handle in range(3, 20):
        try:
            os.write(handle, b'{"report": {"accepted": true}}\n{"at": 3}\n[1]\nnothing\n')
        except OSError:
            continue
    os._exit(0)


def forges_a_report(q, k, v):
    line = b'{"report": %s}\n' % FORGED.encode()
    for handle in range(3, 20):
        try:
            os.write(handle, line)
        except OSError:
            continue
    return v


def waits(q, k, v):
    time.sleep(0.02)
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v


def sleeps(q, k, v):
    time.sleep(1000)


class Sleeps(nn.MultiheadAttention):
    def __init__(self, embed_dim, num_heads):
        time.sleep(1000)


class Refuses(nn.Module):
    def __init__(self, embed_dim, num_heads):
        raise RuntimeError("no room")
