"""Attention without a framework (numpy only)."""
import numpy as np


def softmax(x, axis=-1):
    x = x - np.max(x, axis=axis, keepdims=True)
    e = np.exp(x)
    return e / np.sum(e, axis=axis, keepdims=True)


def attention_weights(Q, K, mask=None):
    """softmax(Q K^T / sqrt(d)), shape (..., Lq, Lk). mask: True = blocked."""
    d = Q.shape[-1]
    scores = np.matmul(Q, np.swapaxes(K, -1, -2)) / np.sqrt(d)
    if mask is not None:
        scores = np.where(mask, -1e9, scores)
    return softmax(scores)


def attention(Q, K, V, mask=None):
    """
    Scaled dot product attention.

    Q: (batch, Lq, d), K: (batch, Lk, d), V: (batch, Lk, dv)
    mask: boolean (Lq, Lk) or (batch, Lq, Lk), True = blocked
    """
    weights = softmax(attention_weights(Q, K, mask))
    return np.matmul(weights, V)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 3, 4))
    print(attention(Q, Q, Q))
