"""How a head distributes a row of weights: entropy, effective keys, largest weight."""

from headwise.heads.metrics.metric import Metric, Rows, Sums, averaged
from headwise.lang import Text

ENTROPY = Metric(
    name="entropy",
    label=Text("entropy"),
    title=Text("entropy of the attention, in nats"),
    formula=Text(
        "mean_i -Σ_j A[i,j] log A[i,j], over the queries that may attend to two keys or more"
    ),
    source=Text("Clark et al. 2019, section 3.2, without the smoothing of their code"),
    reads=("entropy", "chooses"),
    sums=lambda rows: averaged(rows.entropy, rows.context.chooses),
)

EFFECTIVE_KEYS = Metric(
    name="effective_keys",
    label=Text("effective keys"),
    title=Text("effective number of keys"),
    formula=Text(
        "mean_i exp(H(i)), H the entropy of row i, over the queries that may attend to two keys or "
        "more"
    ),
    source=Text(
        "the perplexity of each row, at most its allowed keys; the mean is after the exponential"
    ),
    reads=("entropy", "chooses"),
    sums=lambda rows: averaged(rows.entropy.exp(), rows.context.chooses),
)


def _normalised_entropy(rows: Rows) -> Sums:
    largest = rows.context.choices.clamp(min=2).to(rows.weights.dtype).log()
    return averaged(rows.entropy / largest, rows.context.chooses)


NORMALISED_ENTROPY = Metric(
    name="normalised_entropy",
    label=Text("spread out"),
    title=Text("entropy as a share of what a uniform head has"),
    formula=Text("mean_i H(i) / log n(i), n(i) the keys that i may attend to, two or more; 0 to 1"),
    source=Text("each row by its own maximum: in a causal model that of row i is log(i + 1)"),
    reads=("entropy", "choices", "chooses"),
    sums=_normalised_entropy,
)

SMOOTHED_ENTROPY = Metric(
    name="smoothed_entropy",
    label=Text("smoothed entropy"),
    title=Text("entropy of the weights mixed with a small uniform share, in nats"),
    formula=Text("mean_i -Σ_j A'[i,j] log A'[i,j], A' = 0.9999 A + 0.0001 / N, N all keys"),
    source=Text("the code of Clark et al. 2019; N counts keys that are not allowed as well"),
    reads=("smoothed",),
    sums=lambda rows: averaged(rows.smoothed, rows.context.queries),
)

LARGEST = Metric(
    name="max",
    label=Text("max"),
    title=Text("largest weight"),
    formula=Text("mean_i max_j A[i,j]"),
    source=Text(
        "Voita et al. 2019, section 5, confidence; they leave out queries whose key is EOS"
    ),
    reads=("most",),
    sums=lambda rows: (rows.most[0], rows.context.queries),
)


def _confidence(rows: Rows) -> Sums:
    value, key = rows.most
    counted = rows.context.queries.expand_as(value)
    if rows.context.separators is not None:
        special = rows.context.separators[:, None].expand(*value.shape[:2], -1)
        counted = counted & ~special.gather(-1, key)
    return averaged(value, counted)


CONFIDENCE = Metric(
    name="confidence",
    label=Text("confidence"),
    title=Text("largest weight, where it is not on a separator"),
    formula=Text("mean_i max_j A[i,j], over the queries whose heaviest key is no separator"),
    source=Text("Voita et al. 2019, section 4.1; they leave out the end of the sentence"),
    reads=("most",),
    sums=_confidence,
)

BLOCKS = Metric(
    name="blocks",
    label=Text("blocks"),
    title=Text("share on the heaviest tenth of blocks of 16 keys"),
    formula=Text(
        "mean_i of the largest ⌈n / 10⌉ of the n sums of A[i,j] over blocks of 16 keys, over the "
        "queries with n > 1"
    ),
    source=Text(
        "the block-sparse pattern of Jiang et al. 2024 (MInference), for single queries; ours"
    ),
    reads=("blocks",),
    sums=lambda rows: averaged(rows.blocks, (rows.context.blocks > 1) & rows.context.queries),
)
