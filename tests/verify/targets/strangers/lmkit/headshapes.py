def split_heads(t, n):
    """(B, T, n*d) -> (B, n, T, d)"""
    B, T, E = t.shape
    return t.view(B, T, n, E // n).transpose(1, 2)


def merge_heads(t):
    """(B, n, T, d) -> (B, T, n*d)"""
    B, n, T, d = t.shape
    return t.transpose(1, 2).reshape(B, T, n * d)
