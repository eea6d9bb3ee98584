"""Tensor parallelism gives the right result or an error; context parallelism gives an error."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import headwise as hw
from headwise.errors import BadValue
from headwise.nn import LogitScale, OutputGate
from headwise.verify.oracle.tolerance import accept

E, H, G, B, L, RANKS = 24, 4, 2, 2, 7, 2


def sharded(layer: hw.MultiheadAttention, rank: int, *, share_keys: bool = False) -> nn.Module:
    """A rank's part, as `ColwiseParallel` and `RowwiseParallel` leave it: some of the rows."""
    part = copy.deepcopy(layer)
    for name in ("q_proj", "k_proj", "v_proj"):
        linear = getattr(part, name)
        if share_keys and name != "q_proj":
            continue
        for kind in ("weight", "bias"):
            rows = getattr(linear, kind).detach().chunk(RANKS)[rank].clone()
            setattr(linear, kind, nn.Parameter(rows))
    part.out_proj.weight = nn.Parameter(part.out_proj.weight.detach().chunk(RANKS, 1)[rank].clone())
    if rank:
        part.out_proj.bias = None
    return part


def made(**options) -> hw.MultiheadAttention:
    return hw.MultiheadAttention(E, H, batch_first=True, **options).double()


@pytest.mark.parametrize(
    "options",
    [{}, {"num_kv_heads": G}, {"mask": hw.causal(), "position": hw.Rotary(6, pairs="halves")},
     {"query_norm": nn.RMSNorm(6), "softcap": 2.0, "head_dim": 6}, {"position": hw.Shaw(2, 6)}],
    ids=str,
)  # fmt: skip
def test_the_sum_over_ranks_is_the_whole(options):
    layer, x = made(**options), torch.randn(B, L, E).double()
    padding = torch.tensor([[False] * L, [False] * 4 + [True] * 3])
    right, weights = layer(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    results = [
        sharded(layer, rank)(x, x, x, key_padding_mask=padding, average_attn_weights=False)
        for rank in range(RANKS)
    ]
    total = sum(output for output, _ in results)
    accept(total, right.float(), right)
    accept(torch.cat([w for _, w in results], 1), weights.float(), weights)


REFUSED = [
    ({"sinks": True}, "sinks"),
    ({"position": hw.ALiBi(H)}, "position"),
    ({"position": hw.T5Bias(H)}, "position"),
    ({"mask": hw.per_head([hw.causal()] * H)}, "mask"),
    ({"mask": hw.from_tensor(torch.rand(H, L, L) > 0.1, "h q k")}, "mask"),
    ({"mask": hw.block_sparse(torch.ones(H, 4, 4).bool(), 2)}, "mask"),
    ({"add_bias_kv": True}, "add_bias_kv"),
    ({"logit_scale": LogitScale(H)}, "logit_scale"),
    ({"gate": OutputGate(E, H)}, "gate"),
]


@pytest.mark.parametrize(("options", "name"), REFUSED, ids=str)
def test_what_belongs_to_all_heads_is_refused(options, name):
    part, x = sharded(made(**options), 1), torch.randn(B, L, E).double()
    with pytest.raises(BadValue, match=f"{name}: .* for each of 4 heads, .* only 2 heads") as e:
        part(x, x, x, need_weights=False)
    assert e.value.text.zh != e.value.text.en


def test_a_mask_of_every_head_in_the_call_is_refused():
    part, x = sharded(made(), 0), torch.randn(B, L, E).double()
    blocked = torch.zeros(B * H, L, L, dtype=torch.bool)
    with pytest.raises(BadValue, match="mask: it has a value for each of 4 heads"):
        part(x, x, x, attn_mask=blocked, need_weights=False)


def test_keys_that_are_not_sharded_with_the_queries_are_refused():
    part = sharded(made(num_kv_heads=G), 1, share_keys=True)
    x = torch.randn(B, L, E).double()
    with pytest.raises(BadValue, match=r"2 of 4 query heads and 2 of 2 key/value heads.*shard q"):
        part(x, x, x, need_weights=False)


def test_the_mean_of_some_heads_is_refused():
    part, x = sharded(made(), 0), torch.randn(B, L, E).double()
    with pytest.raises(BadValue, match="average_attn_weights: this rank has 2 of 4 heads"):
        part(x, x, x)


SCRIPT = """
import sys, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import headwise as hw
from headwise.verify.oracle.tolerance import accept
rank, store = int(sys.argv[1]), torch.distributed.FileStore(sys.argv[2], 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
torch.manual_seed(0)
layer = hw.MultiheadAttention(24, 4, batch_first=True, num_kv_heads=2, mask=hw.causal()).double()
x = torch.randn(2, 7, 24).double()
right = layer(x, x, x, need_weights=False)[0]
plan = {name: ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
parallelize_module(layer, init_device_mesh("cpu", (2,)), {**plan, "out_proj": RowwiseParallel()})
found = layer(x, x, x, need_weights=False)[0]
accept(found, right.float(), right)
found.sum().backward()
assert layer.q_proj.weight.grad.to_local().shape == (12, 24)
torch.distributed.destroy_process_group()
print("equal")
"""


@pytest.mark.slow
def test_two_processes_with_torch_s_own_tensor_parallelism(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    workers = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    assert [worker.communicate(timeout=120)[0].strip() for worker in workers] == [b"equal"] * 2


@pytest.fixture
def group(tmp_path: Path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("group")
def test_inside_context_parallel_attention_is_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    mesh, layer = init_device_mesh("cpu", (1,)), made()
    x: Tensor = torch.randn(B, 8, E).double()
    q = torch.randn(B, H, 8, 6)
    right = layer(x, x, x)[0]
    inner = scaled_dot_product_attention
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
        for call in (lambda: layer(x, x, x), lambda: hw.attend(q, q, q)):
            with pytest.raises(BadValue, match=r"inside context_parallel.* leave the context"):
                call()
    assert torch.equal(layer(x, x, x)[0], right)
    assert torch.nn.functional.scaled_dot_product_attention is inner
