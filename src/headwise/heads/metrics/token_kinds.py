"""Attention to kinds of tokens: first, special, punctuation, rare; and to no token."""

from collections.abc import Callable

from headwise.heads.metrics.key_context import FIRST_KEY
from headwise.heads.metrics.metric import Metric, Rows, Sums, averaged
from headwise.lang import Text

FIRST = Metric(
    name="first",
    label=Text("first"),
    title=Text("share on the first token"),
    formula=Text("mean_i A[i, f], f the first real token, over the queries that may attend to it"),
    source=Text("Gu et al. 2025 (ICLR), importance α of the first key; depends on the length"),
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
    title=Text("attention that the first token receives from the first 64"),
    formula=Text(
        "α_1 = mean_i A[i, f] over the queries f ≤ i < f + 64 that may attend to f, the first real "
        "token"
    ),
    source=Text("Gu et al. 2025 (ICLR), importance of the first token, T = 64; a sink above 0.3"),
    share=True,
    reads=("single",),
    sums=_sink,
)

UNSPENT = Metric(
    name="unspent",
    label=Text("unspent"),
    title=Text("share that goes to a learned sink or an appended key and to no token"),
    formula=Text(
        "mean_i 1 - Σ_j A[i,j], j the tokens; 0 without learned sinks, add_bias_kv, add_zero_attn"
    ),
    source=Text("the sink of gpt-oss (OpenAI 2025), whose column is not a token"),
    reads=("mass",),
    sums=lambda rows: averaged((1 - rows.mass).clamp(min=0), rows.context.queries),
)

SEPARATORS = Metric(
    name="separators",
    label=Text("separators"),
    title=Text("share on separators"),
    formula=Text(
        "mean_i Σ_{j in S} A[i,j], S the special tokens, such as [SEP], after the first token, "
        "over the queries that may attend to one"
    ),
    source=Text(
        "Clark et al. 2019, section 3.2; the first token ([CLS]) is apart there too: `first`"
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
    title=Text("share that separators give to separators"),
    formula=Text(
        "mean_i Σ_{j in S} A[i,j], S the special tokens, j after the first, over the queries i in "
        "S that may attend to one"
    ),
    source=Text("Clark et al. 2019, section 3.2, [SEP] to [SEP]; here [CLS] asks as well"),
    reads=("sets",),
    sums=_from_separators(True),
)

FROM_OTHERS = Metric(
    name="from_others",
    label=Text("other to sep."),
    title=Text("share that other tokens give to separators"),
    formula=Text(
        "mean_i Σ_{j in S} A[i,j], j after the first, over the queries i not in S that may attend "
        "to one"
    ),
    source=Text("Clark et al. 2019, section 3.2, other tokens to [SEP]"),
    reads=("sets",),
    sums=_from_separators(False),
)

SEGMENT = Metric(
    name="segment",
    label=Text("segment"),
    title=Text("share within its own part of the text"),
    formula=Text(
        "mean_i Σ_j A[i,j], j between the same separators as i, over the queries that may attend "
        "there and elsewhere"
    ),
    source=Text(
        "the block class of Kovaleva et al. 2019 as a rule of ours; no threshold was published"
    ),
    reads=("segment",),
    sums=lambda rows: averaged(rows.segment, rows.context.segment),
)

PUNCTUATION = Metric(
    name="punctuation",
    label=Text("punctuation"),
    title=Text("share on punctuation"),
    formula=Text(
        "mean_i Σ_{j in P} A[i,j], P the tokens of punctuation, for queries that may attend to one"
    ),
    source=Text("Clark et al. 2019, section 3.2, who take the full stop and the comma"),
    share=True,
    reads=("sets",),
    sums=lambda rows: rows.on("punctuation"),
)

COMMON = 500  # a query counts if its rarest word is outside this many of the most frequent tokens


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
    title=Text("how often its heaviest key is the rarest word"),
    formula=Text(
        "share of queries whose argmax_j A[i,j] has the rarest token allowed, of those whose "
        "rarest is outside the top 500; the first token and special ones are no candidates"
    ),
    source=Text(
        "Voita et al. 2019, section 4.3; the number of a token stands for its rank in frequency"
    ),
    reads=("most", "rarest"),
    sums=_rarest,
)
