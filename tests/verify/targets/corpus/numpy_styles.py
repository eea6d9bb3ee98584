"""Attention functions on NumPy arrays, as in courses."""

import numpy as np

MISTAKES = {
    "by_matmul": (),
    "by_einsum": (),
    "by_loops": (),
    "no_scale": ("no_scale",),
    "over_queries": ("softmax_over_queries",),
    "scale_and_mask": ("scale_by_dim", "mask_after_softmax"),
}


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def by_matmul(q, k, v, mask=None):
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    return softmax(scores) @ v


def by_einsum(q, k, v):
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(k.shape[-1])
    return np.einsum("bhqk,bhkd->bhqd", softmax(scores), v)


def by_loops(queries, keys, values):
    output = np.zeros((*queries.shape[:3], values.shape[3]), dtype=queries.dtype)
    for b in range(queries.shape[0]):
        for h in range(queries.shape[1]):
            for i in range(queries.shape[2]):
                scores = keys[b, h].dot(queries[b, h, i]) / np.sqrt(queries.shape[3])
                output[b, h, i] = softmax(scores).dot(values[b, h])
    return output


def no_scale(q, k, v):
    return softmax(q @ k.transpose(0, 1, 3, 2)) @ v


def over_queries(q, k, v):
    return softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]), axis=-2) @ v


def scale_and_mask(q, k, v, mask=None):
    weights = softmax(q @ k.transpose(0, 1, 3, 2) / q.shape[-1])
    if mask is not None:
        weights = weights * mask
    return weights @ v
