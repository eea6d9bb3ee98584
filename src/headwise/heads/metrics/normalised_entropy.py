"""How widely a head spreads its attention, beside the most it could."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.chooses
    most = rows.offer.choices.clamp(min=2).to(rows.weights.dtype).log()
    return rows.entropy / most * counted, counted


NORMALISED_ENTROPY = Metric(
    name="normalised_entropy",
    label=Text("spread out", "相对熵"),
    title=Text("entropy as a share of what a uniform head has", "熵占均匀头之熵的比例"),
    formula=Text(
        "mean_i H(i) / log n(i), n(i) the keys that i may attend to, two or more; 0 to 1",
        "mean_i H(i) / log n(i)，n(i) 为 i 可关注的键数，至少两个；范围 0 到 1",
    ),
    source=Text(
        "each row by its own maximum: in a causal model that of row i is log(i + 1)",
        "每一行除以自身的最大值：因果模型中第 i 行为 log(i + 1)",
    ),
    share=False,
    reads=("entropy", "choices", "chooses"),
    sums=_sums,
)
