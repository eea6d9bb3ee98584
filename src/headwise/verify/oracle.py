"""The right answer of a whole module: its projections around `headwise.reference`."""

import torch
from torch import Tensor

from headwise.call import Call
from headwise.reference import reference
from headwise.verify.jobs import Job
from headwise.verify.pipeline import Trace


def oracle(job: Job, dtype: torch.dtype = torch.float64) -> Trace:
    """Every quantity of the job by the definition, in the dtype asked for.

    Dropout is left out: the oracle is not random.
    """
    job, w = job.to(dtype), job.weights.to(dtype)
    q = _linear(job.query, w.q, w.q_bias)
    k = _linear(job.key, w.k, w.k_bias)
    v = _linear(job.value, w.v, w.v_bias)
    call = Call.of(
        _heads(q, job.heads), _heads(k, job.groups), _heads(v, job.groups), mask=job.mask
    )
    steps = reference(call, dtype)
    merged = torch.cat([steps.output[:, h] for h in range(job.heads)], dim=-1)
    return {
        "q": q,
        "k": k,
        "v": v,
        "q_heads": steps.q,
        "k_heads": steps.k,
        "v_heads": steps.v,
        "dots": steps.dots,
        "scaled": steps.scaled,
        "scores": steps.scores,
        "weights": steps.weights,
        "heads": steps.output,
        "merged": merged,
        "output": merged if w.out is None else _linear(merged, w.out, w.out_bias),
    }


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = x @ weight.T
    return product if bias is None else product + bias


def _heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, heads D) to (B, heads, L, D), one slice a head."""
    return torch.stack(x.chunk(heads, dim=-1), dim=1)
