"""How widely a head spreads its attention, beside the most it could."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.chooses
    most = rows.offer.choices.clamp(min=2).to(rows.weights.dtype).log()
    return rows.entropy / most * counted, counted


NORMALISED_ENTROPY = Metric(
    name="normalised_entropy",
    label=Text("spread out"),
    title=Text("entropy as a share of what a uniform head has"),
    formula=Text("mean_i H(i) / log n(i), n(i) the keys that i may attend to, two or more; 0 to 1"),
    source=Text("each row by its own maximum: in a causal model that of row i is log(i + 1)"),
    share=False,
    reads=("entropy", "choices", "chooses"),
    sums=_sums,
)
