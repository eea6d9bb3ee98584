"""The pictures in the decision records, drawn by the code that they describe."""

from collections.abc import Callable

import torch

import headwise as hw
from headwise import shapes
from headwise.call import NEEDS
from headwise.errors import HeadwiseError
from headwise.masks import Mask
from headwise.shapes import AttentionShape


def layout() -> str:
    """Return the key/value head that each query head uses; its values are its index."""
    query, key = torch.zeros(1, 6, 1, 1), torch.zeros(1, 3, 1, 1)
    value = torch.arange(3.0).view(1, 3, 1, 1)
    read = hw.attend(query, key, value).flatten().int().tolist()
    return f"query head      {'  '.join('012345')}\nkey/value head  {_numbers(read)}"


def letters() -> str:
    """Return the legend of `headwise.shapes`."""
    text = (shapes.__doc__ or "").split("\n\n")[1]
    return "\n".join(line.removeprefix("    ") for line in text.splitlines())


def mask_true() -> str:
    """Return a causal mask, in which ■ is True."""
    return f"causal()\n\n{hw.causal().draw(5)}"


def window() -> str:
    """Return two windows, with the number of keys that the last query may attend to."""
    return "\n\n".join(
        f"{mask}: the last query has {mask.draw(7).splitlines()[-1].count('■')} allowed keys\n\n"
        f"{mask.draw(7)}"
        for mask in (hw.causal() & hw.window(3, 0), hw.window(2, 1))
    )


def lower_right() -> str:
    """Return causal masks with fewer queries than keys, and with more."""
    fewer, more = hw.causal().draw(2, 6), hw.causal().draw(5, 2)
    note = "queries 0 to 2 are fully masked"
    return f"2 queries, 6 keys\n\n{fewer}\n\n5 queries, 2 keys: {note}\n\n{more}"


def query_positions() -> str:
    """Return the same mask for two queries at three offsets."""
    mask, header = hw.window(1, 0), "window(1, 0), 2 queries, 6 keys, offset"
    return "\n\n".join(f"{header} {n}\n\n{_draw(mask, 2, 6, n)}" for n in (0, 2, 4))


def blind_rows() -> str:
    """Return output, weights and logsumexp for samples with two keys and with no key."""
    x = torch.ones(2, 1, 1, 2)
    result = hw.attend(
        x, x.expand(2, 1, 2, 2), x.expand(2, 1, 2, 2), mask=hw.padding([2, 0]), need=NEEDS
    )
    rows = zip((2, 0), result.output, result.weights, result.logsumexp, strict=True)
    return "\n".join(
        f"{length} keys not padded: output {_row(o)}, weights {_row(w)}, logsumexp {_row(s)}"
        for length, o, w, s in rows
    )


def padded_keys() -> str:
    """Return the output for two keys and two padded keys that are NaN and inf."""
    key = torch.tensor([1.0, 2.0, torch.nan, torch.inf]).view(1, 1, 4, 1)
    output = hw.attend(torch.zeros(1, 1, 1, 1), key, key, mask=hw.padding([2]))
    return f"k = v = {_row(key)}, the last 2 keys are padding, q = 0\noutput {_row(output)}"


def nonfinite_keys() -> str:
    """Return the output of each query under a causal mask; the third key is NaN."""
    x = torch.tensor([1.0, 2.0, torch.nan, 4.0]).view(1, 1, 4, 1)
    output = hw.attend(torch.zeros(1, 1, 4, 1), x, x, mask=hw.causal())
    return f"k = v = [1, 2, nan, 4], causal, q = 0\noutput {_numbers(output.flatten().tolist())}"


def softmax() -> str:
    """Return the mean of 4099 ones, with a softmax in float32 and with sums in bfloat16."""
    query, key = torch.zeros(1, 1, 1, 1).bfloat16(), torch.zeros(1, 1, 4099, 1).bfloat16()
    ours = hw.attend(query, key, torch.ones_like(key), engine="eager").item()
    raised = torch.zeros(4099).bfloat16().exp()
    total = torch.zeros((), dtype=torch.bfloat16)
    for value in raised:
        total = total + value
    return (
        "4099 equal scores in bfloat16, all values are 1, and the exact output is 1\n\n"
        f"softmax in float32   {ours:g}\nsoftmax in bfloat16  {4099 / total.item():g}"
    )


def scale() -> str:
    """Return the weights for D = 4 and q · k of 0 and 2: [1, e] / (1 + e)."""
    query = torch.ones(1, 1, 1, 4)
    key = torch.stack((torch.zeros(4), torch.full((4,), 0.5)))[None, None]
    weights = hw.attend(query, key, key, need=["weights"]).weights
    return f"q · k = [0, 2], D = 4\nweights {_row(weights)} = [1, e] / (1 + e)"


def weights_before_dropout() -> str:
    """Return the row sums of the weights in training with dropout 0.5."""
    torch.manual_seed(0)
    ours = hw.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    theirs = torch.nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = torch.randn(1, 4, 8)
    sums = [m(x, x, x)[1].sum(-1) for m in (ours, theirs)]
    return f"row sums in training mode\n\nheadwise {_row(sums[0])}\ntorch    {_row(sums[1])}"


def dropout() -> str:
    """Return an output for the same seed twice and for a different seed, in both modes."""
    module = hw.MultiheadAttention(4, 1, dropout=0.5, batch_first=True)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.25)
    x = torch.ones(1, 4, 4)

    def first(seed: int) -> str:
        torch.manual_seed(seed)
        return f"{module(x, x, x)[0][0, 0, 0].item():.4f}"

    training = f"training mode, seeds 1, 1, 4: {first(1)} {first(1)} {first(4)}"
    module.eval()
    return f"{training}\neval mode, seeds 1, 1, 4:     {first(1)} {first(1)} {first(4)}"


def rope_pairs() -> str:
    """Return the pairs of elements of a head of 8 that are rotated together."""
    q = torch.zeros(1, 1, 1, 8)
    return "\n".join(
        f"{pairs:10} {' '.join(map(str, _partners(hw.Rotary(8, pairs=pairs), q)))}"
        for pairs in ("halves", "neighbours")
    )


def alibi() -> str:
    """Return the slopes of 8 and of 12 heads."""
    rows = {heads: hw.ALiBi(heads).slopes().tolist() for heads in (8, 12)}
    return "\n".join(
        f"{heads:2} heads: {' '.join(f'{slope:.4f}' for slope in slopes)}"
        for heads, slopes in rows.items()
    )


def random_patterns() -> str:
    """Return a mask with the same seed twice, and with a different seed."""
    first, again, other = (hw.random_blocks(1, 2, seed=seed).draw(6) for seed in (0, 0, 1))
    return f"seed 0\n\n{first}\n\nseed 0 again\n\n{again}\n\nseed 1\n\n{other}"


def cache_positions() -> str:
    """Return the causal window for 5 tokens at once, and for chunks of 3 and 2 tokens."""
    mask = hw.causal() & hw.window(2, 0)
    whole, first, second = mask.draw(5), mask.draw(3), mask.draw(2, 5)
    return (
        f"5 tokens at once\n\n{whole}\n\nthe first 3 tokens\n\n{first}\n\n"
        f"the next 2 tokens, with 3 tokens in the cache\n\n{second}"
    )


def shapes_any() -> str:
    """Return a window longer than the sequence, and the output shape for a length of 0."""
    x = torch.zeros(1, 1, 0, 4)
    empty = tuple(hw.attend(x, x, x, mask=hw.causal()).shape)
    return f"window(9, 9), 3 tokens\n\n{hw.window(9, 9).draw(3)}\n\n0 tokens: output shape {empty}"


def errors() -> str:
    """Return three error messages in both languages."""
    x = torch.zeros(1, 5, 2, 4)
    mistakes: tuple[Callable[[], object], ...] = (
        lambda: hw.window(-1, 0),
        lambda: hw.attend(x, x[:, :3], x[:, :3]),
        lambda: hw.attend(x, x, x, engine="cuda"),
    )
    return "\n\n".join(f"{error.text.en}\n{error.text.zh}" for error in map(_caught, mistakes))


PICTURES: tuple[tuple[str, Callable[[], str]], ...] = (
    ("0001-layout", layout),
    ("0002-letters", letters),
    ("0003-mask-true", mask_true),
    ("0004-window", window),
    ("0005-lower-right", lower_right),
    ("0006-query-positions", query_positions),
    ("0007-blind-rows", blind_rows),
    ("0008-padded-keys", padded_keys),
    ("0022-nonfinite-keys", nonfinite_keys),
    ("0009-softmax", softmax),
    ("0010-scale", scale),
    ("0011-weights-before-dropout", weights_before_dropout),
    ("0012-dropout", dropout),
    ("0013-rope-pairs", rope_pairs),
    ("0014-alibi", alibi),
    ("0015-cache-positions", cache_positions),
    ("0016-random-patterns", random_patterns),
    ("0017-shapes", shapes_any),
    ("0018-errors", errors),
)
"""The file name of each record, and the function that draws its picture."""


def _draw(mask: Mask, queries: int, keys: int, offset: int) -> str:
    dense = mask.dense(AttentionShape(1, 1, queries, keys, offset, torch.device("cpu")))[0, 0]
    return "\n".join(" ".join("■" if seen else "·" for seen in row) for row in dense.tolist())


def _partners(position: hw.Rotary, q: torch.Tensor) -> list[str]:
    """Return the pairs of elements that a rotation mixes, such as 0-4 or 0-1."""
    pairs = []
    for number in range(8):
        one = q.clone()
        one[..., number] = 1
        turned = position.at([3], [3]).content(one, one, None)[0].flatten()
        touched = turned.nonzero().flatten().tolist()
        if touched[0] == number:
            pairs.append(f"{touched[0]}-{touched[1]}")
    return pairs


def _caught(mistake: Callable[[], object]) -> HeadwiseError:
    try:
        mistake()
    except HeadwiseError as error:
        return error
    raise RuntimeError("expected an error of headwise")


def _row(values: torch.Tensor) -> str:
    return f"[{', '.join(f'{value:.4g}' for value in values.flatten().tolist())}]"


def _numbers(values: list[int]) -> str:
    return "  ".join(map(str, values))
