"""PyTorch's own multi-head attention, with the weights of a job: a second opinion."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headwise.verify.jobs import Job
from headwise.verify.subject import Outcome


def torch_attention(job: Job) -> Outcome:
    """`torch.nn.MultiheadAttention` on a job; a missing bias is 0, a missing output the identity.

    D = Dv = E / H; where heads share keys and values, each gets its own copy.
    """
    w, size = job.weights.spread(job.heads, job.groups), job.query.shape[-1]
    zeros = torch.zeros(size, dtype=job.query.dtype)

    def bias(given: Tensor | None) -> Tensor:
        return zeros if given is None else given

    laid = {
        "in_proj_weight": torch.cat((w.q, w.k, w.v)),
        "in_proj_bias": torch.cat((bias(w.q_bias), bias(w.k_bias), bias(w.v_bias))),
        "out_proj.weight": torch.eye(size, dtype=job.query.dtype) if w.out is None else w.out,
        "out_proj.bias": bias(w.out_bias),
    }
    module = nn.MultiheadAttention(size, job.heads, batch_first=True, dtype=job.query.dtype)
    allowed = job.mask.dense(job.frame).expand(job.frame.batch, job.heads, -1, -1)
    options = {"attn_mask": ~allowed.flatten(0, 1), "average_attn_weights": False}
    inputs = (job.query, job.key, job.value)
    output, weights = functional_call(module.eval(), laid, inputs, options)
    return Outcome(output, weights)
