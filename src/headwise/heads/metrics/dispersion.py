"""Metrics of the dispersion of a row of weights: entropy, effective keys, largest weight."""

from headwise.heads.metrics.metric import Metric, Rows, Sums, averaged
from headwise.lang import Text

ENTROPY = Metric(
    name="entropy",
    label=Text("entropy"),
    title=Text("entropy of the attention, in nats"),
    formula=Text("mean_i -Σ_j A[i,j] log A[i,j], over the queries with at least two allowed keys"),
    source=Text("Clark et al. 2019, section 3.2, without the smoothing of their code"),
    reads=("entropy", "chooses"),
    sums=lambda rows: averaged(rows.entropy, rows.context.chooses),
)

EFFECTIVE_KEYS = Metric(
    name="effective_keys",
    label=Text("effective keys"),
    title=Text("effective number of keys"),
    formula=Text(
        "mean_i exp(H(i)), H the entropy of row i, over the queries with at least two allowed keys"
    ),
    source=Text("the perplexity of each row, averaged; it is at most the number of allowed keys"),
    reads=("entropy", "chooses"),
    sums=lambda rows: averaged(rows.entropy.exp(), rows.context.chooses),
)


def _normalised_entropy(rows: Rows) -> Sums:
    largest = rows.context.choices.clamp(min=2).to(rows.weights.dtype).log()
    return averaged(rows.entropy / largest, rows.context.chooses)


NORMALISED_ENTROPY = Metric(
    name="normalised_entropy",
    label=Text("normalised entropy"),
    title=Text("entropy as a fraction of that of a uniform head"),
    formula=Text("mean_i H(i) / log n(i), over the queries with n(i) ≥ 2 allowed keys; 0 to 1"),
    source=Text("each row divided by its maximum, log(i + 1) for row i of a causal model"),
    reads=("entropy", "choices", "chooses"),
    sums=_normalised_entropy,
)

SMOOTHED_ENTROPY = Metric(
    name="smoothed_entropy",
    label=Text("smoothed entropy"),
    title=Text("entropy after mixing the weights with a small uniform share, in nats"),
    formula=Text("mean_i -Σ_j A'[i,j] log A'[i,j], A' = 0.9999 A + 0.0001 / N for N keys"),
    source=Text("code of Clark et al. 2019; N includes keys that are not allowed"),
    reads=("smoothed",),
    sums=lambda rows: averaged(rows.smoothed, rows.context.queries),
)

LARGEST = Metric(
    name="max",
    label=Text("max"),
    title=Text("largest weight"),
    formula=Text("mean_i max_j A[i,j]"),
    source=Text(
        "Voita et al. 2019, section 5, confidence; the paper excludes queries attending to EOS"
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
    title=Text("largest weight of queries where it is not on a separator"),
    formula=Text("mean_i max_j A[i,j], over the queries whose argmax_j A[i,j] is not a separator"),
    source=Text("Voita et al. 2019, section 4.1; the paper excludes end-of-sentence tokens"),
    reads=("most",),
    sums=_confidence,
)

BLOCKS = Metric(
    name="blocks",
    label=Text("blocks"),
    title=Text("share on the tenth of the 16-key blocks with the largest weights"),
    formula=Text(
        "mean_i of the sum of the largest ⌈n / 10⌉ of n block sums of A[i,j], blocks of 16 keys, "
        "over the queries with n > 1"
    ),
    source=Text(
        "our metric for the block-sparse pattern of Jiang et al. 2024 (MInference), by query"
    ),
    reads=("blocks",),
    sums=lambda rows: averaged(rows.blocks, (rows.context.blocks > 1) & rows.context.queries),
)
