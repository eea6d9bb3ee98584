"""How separators look at each other, and the other tokens at them."""

from collections.abc import Callable

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _from(special: bool) -> Callable[[Rows], Sums]:
    def sums(rows: Rows) -> Sums:
        separators, position = rows.offer.separators, rows.offer.position
        if separators is None or position is None:
            return rows.nothing
        weight, counted = rows.on("separators")
        asking = separators[:, position] == special  # (B, R)
        return weight * asking[:, None], counted & asking[:, None]

    return sums


FROM_SEPARATORS = Metric(
    name="from_separators",
    label=Text("sep. to sep."),
    title=Text("share that separators give to separators"),
    formula=Text(
        "mean_i Σ_{j in S} A[i,j], S the special tokens, j after the first, over the "
        "queries i in S that may attend to one"
    ),
    source=Text("Clark et al. 2019, section 3.2, [SEP] to [SEP]; here [CLS] asks as well"),
    share=False,
    reads=("sets",),
    sums=_from(True),
)


FROM_OTHERS = Metric(
    name="from_others",
    label=Text("other to sep."),
    title=Text("share that other tokens give to separators"),
    formula=Text(
        "mean_i Σ_{j in S} A[i,j], j after the first, over the queries i not in S that "
        "may attend to one"
    ),
    source=Text("Clark et al. 2019, section 3.2, other tokens to [SEP]"),
    share=False,
    reads=("sets",),
    sums=_from(False),
)
