"""Metrics of attention to kinds of tokens: first, special, punctuation, rare, and to sinks."""

from collections.abc import Callable

from headwise.heads.metrics.key_context import FIRST_KEY
from headwise.heads.metrics.metric import Metric, Rows, Sums, averaged
from headwise.lang import Text

FIRST = Metric(
    name="first",
    label=Text("first"),
    title=Text("share on the first token"),
    formula=Text("mean_i A[i, f], f the first non-padding token, over the queries with f allowed"),
    source=Text("Gu et al. 2025 (ICLR), importance α of the first key; depends on the text length"),
    share=True,
    reads=("single",),
    sums=lambda rows: rows.on_single(FIRST_KEY),
)


def _sink(rows: Rows) -> Sums:
    weight, queries = rows.on_single(FIRST_KEY)
    return averaged(weight, queries & rows.context.early[0][:, None])


SINK = Metric(
    name="sink",
    label=Text("sink"),
    title=Text("attention from the first 64 tokens to the first token"),
    formula=Text(
        "α_1 = mean_i A[i, f] over the queries f ≤ i < f + 64 that may attend to f, the first "
        "non-padding token"
    ),
    source=Text("Gu et al. 2025 (ICLR), importance of the first token, T = 64; > 0.3 is a sink"),
    share=True,
    reads=("single",),
    sums=_sink,
)

UNSPENT = Metric(
    name="unspent",
    label=Text("sink mass"),
    title=Text("share on learned sinks and appended keys instead of tokens"),
    formula=Text(
        "mean_i (1 - Σ_j A[i,j]), j over tokens; 0 without learned sinks, add_bias_kv and "
        "add_zero_attn"
    ),
    source=Text("learned sinks as in gpt-oss (OpenAI 2025)"),
    reads=("mass",),
    sums=lambda rows: averaged((1 - rows.mass).clamp(min=0), rows.context.queries),
)

SEPARATORS = Metric(
    name="separators",
    label=Text("separators"),
    title=Text("share on separators"),
    formula=Text(
        "mean_i Σ_{j in S} A[i,j], S the special tokens after the first token, such as [SEP], "
        "over the queries that may attend to one of them"
    ),
    source=Text(
        "Clark et al. 2019, section 3.2; as in the paper, [CLS] is a separate metric, `first`"
    ),
    share=True,
    reads=("sets",),
    sums=lambda rows: rows.on("separators"),
)


def _from_separators(special: bool) -> Callable[[Rows], Sums]:
    def sums(rows: Rows) -> Sums:
        separators, position = rows.context.separators, rows.context.position
        if separators is None or position is None:
            return rows.nothing
        weight, counted = rows.on("separators")
        chosen = (separators[:, position] == special)[:, None]  # (B, 1, R)
        return weight * chosen, counted & chosen

    return sums


FROM_SEPARATORS = Metric(
    name="from_separators",
    label=Text("sep. to sep."),
    title=Text("share of the attention of separators on separators"),
    formula=Text(
        "mean_i Σ_{j in S} A[i,j], S the special tokens, j not the first token, over the queries i "
        "in S that may attend to such a key"
    ),
    source=Text("Clark et al. 2019, section 3.2, [SEP] to [SEP]; here [CLS] is also a query"),
    reads=("sets",),
    sums=_from_separators(True),
)

FROM_OTHERS = Metric(
    name="from_others",
    label=Text("other to sep."),
    title=Text("share of the attention of other tokens on separators"),
    formula=Text(
        "mean_i Σ_{j in S} A[i,j], j not the first token, over the queries i not in S that may "
        "attend to such a key"
    ),
    source=Text("Clark et al. 2019, section 3.2, other tokens to [SEP]"),
    reads=("sets",),
    sums=_from_separators(False),
)

SEGMENT = Metric(
    name="segment",
    label=Text("segment"),
    title=Text("share on the text segment of the query"),
    formula=Text(
        "mean_i Σ_j A[i,j], j between the same separators as i, over the queries that may attend "
        "inside and outside of these separators"
    ),
    source=Text(
        "our formula for the block class of Kovaleva et al. 2019, without a published threshold"
    ),
    reads=("segment",),
    sums=lambda rows: averaged(rows.segment, rows.context.segment),
)

PUNCTUATION = Metric(
    name="punctuation",
    label=Text("punctuation"),
    title=Text("share on punctuation"),
    formula=Text(
        "mean_i Σ_{j in P} A[i,j], P the punctuation, for the queries that may attend to some of it"
    ),
    source=Text("Clark et al. 2019, section 3.2; the paper uses the full stop and the comma"),
    share=True,
    reads=("sets",),
    sums=lambda rows: rows.on("punctuation"),
)

COMMON = 500  # a query counts if its rarest allowed word is not among the 500 most frequent tokens


def _rarest(rows: Rows) -> Sums:
    tokens, rarest = rows.context.tokens, rows.context.rarest  # (B, Lk), (B, H or 1, R)
    if tokens is None:
        return rows.nothing
    counted = (rarest >= COMMON) & rows.context.queries
    key = rows.most[1].flatten(1)  # (B, H R)
    heaviest = tokens.gather(1, key).where(rows.context.words(key), -1).view(rows.shape)
    return (heaviest == rarest) & counted, counted


RAREST = Metric(
    name="rarest",
    label=Text("rarest"),
    title=Text("share of queries with the largest weight on the rarest word"),
    formula=Text(
        "share of queries with the rarest allowed word at argmax_j A[i,j], of those whose rarest "
        "word is not in the top 500; the first token and special tokens are not words"
    ),
    source=Text(
        "Voita et al. 2019, section 4.3; the token id replaces the frequency rank of a token"
    ),
    reads=("most", "rarest"),
    sums=_rarest,
)
