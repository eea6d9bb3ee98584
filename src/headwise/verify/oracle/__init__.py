"""The exact output of a whole module, and the output of PyTorch's module for comparison."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headwise.call import Call
from headwise.reference import reference
from headwise.verify.oracle.jobs import Job, Outcome
from headwise.verify.oracle.pipeline import Trace


def oracle(job: Job, dtype: torch.dtype = torch.float64) -> Trace:
    """Compute every quantity of a job by the definition in a dtype; once per job and dtype.

    The oracle applies no dropout, since it must not be random.
    """
    if dtype not in job.traces:
        job.traces[dtype] = _trace(job.to(dtype), dtype)
    return job.traces[dtype]


def _trace(job: Job, dtype: torch.dtype) -> Trace:
    w = job.weights
    q = _linear(job.query, w.q, w.q_bias)
    k = _linear(job.key, w.k, w.k_bias)
    v = _linear(job.value, w.v, w.v_bias)
    counts = ((q, job.heads), (k, job.groups), (v, job.groups))
    heads = (torch.stack(x.chunk(n, dim=-1), dim=1) for x, n in counts)  # one slice a head
    steps = reference(Call.of(*heads, mask=job.mask, position=job.position), dtype)
    merged = torch.cat([steps.output[:, h] for h in range(job.heads)], dim=-1)
    output = merged if w.out is None else _linear(merged, w.out, w.out_bias)
    by_head = {"q_heads": steps.q, "k_heads": steps.k, "v_heads": steps.v}
    inside = {name: getattr(steps, name) for name in ("dots", "scaled", "scores", "weights")}
    outside = {"heads": steps.output, "merged": merged, "output": output}
    return {"q": q, "k": k, "v": v, **by_head, **inside, **outside}


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = x @ weight.T
    return product if bias is None else product + bias


def torch_attention(job: Job) -> Outcome:
    """Run `torch.nn.MultiheadAttention` on a job with D = Dv = E / H.

    A missing bias is replaced by 0, a missing output projection by the identity, and shared
    key/value heads by one copy per query head.
    """
    w, size = job.weights.spread(job.heads, job.groups), job.query.shape[-1]
    zeros = torch.zeros(size, dtype=job.query.dtype)

    def bias(own: Tensor | None) -> Tensor:
        return zeros if own is None else own

    parameters = {
        "in_proj_weight": torch.cat((w.q, w.k, w.v)),
        "in_proj_bias": torch.cat((bias(w.q_bias), bias(w.k_bias), bias(w.v_bias))),
        "out_proj.weight": torch.eye(size, dtype=job.query.dtype) if w.out is None else w.out,
        "out_proj.bias": bias(w.out_bias),
    }
    module = nn.MultiheadAttention(size, job.heads, batch_first=True, dtype=job.query.dtype)
    options = {"attn_mask": ~job.allowed.flatten(0, 1), "average_attn_weights": False}
    inputs = (job.query, job.key, job.value)
    output, weights = functional_call(module.eval(), parameters, inputs, options)
    return Outcome(output, weights)
