"""The names that rest on one metric: from which value on, and how far above a uniform head."""

from dataclasses import dataclass

from headwise.heads.metrics import Metric
from headwise.heads.metrics.duplicate import DUPLICATE
from headwise.heads.metrics.far import FAR
from headwise.heads.metrics.following import NEXT
from headwise.heads.metrics.induction import INDUCTION
from headwise.heads.metrics.local import LOCAL
from headwise.heads.metrics.previous import PREVIOUS
from headwise.heads.metrics.punctuation import PUNCTUATION
from headwise.heads.metrics.separators import SEPARATORS
from headwise.heads.metrics.sink import SINK
from headwise.lang import Text

LIFT = 2.0
"""How many times what a uniform head gives a share must be: the idea of the sieve of Pande et al.
2021, whose formula we have not; the number is ours."""


@dataclass(frozen=True)
class Criterion:
    """A name that a head has whose share is above a threshold.

    Attributes:
        name: the name.
        title: the same for a person.
        metric: which share.
        least: the threshold.
        source: whose threshold it is.
    """

    name: str
    title: Text
    metric: Metric
    least: float
    source: Text

    @property
    def words(self) -> Text:
        """The criterion as a sentence."""
        return Text(
            f"{self.metric.title.en} above {self.least} ({self.source.en}), {LIFT:g} times a "
            "uniform head's, and above every head of the random copy",
            f"{self.metric.title.zh}大于 {self.least}（{self.source.zh}），为均匀头的 {LIFT:g} 倍"
            "以上，且高于随机副本的所有头",
        )


_CLARK = Text("Clark et al. 2019, their code", "Clark 等 2019，其代码")
_OURS = Text("most of it; ours", "过半；本项目自定")

CRITERIA = (
    Criterion("previous-token", Text("previous-token", "前一词元"), PREVIOUS, 0.5, _CLARK),
    Criterion("next-token", Text("next-token", "后一词元"), NEXT, 0.5, _CLARK),
    Criterion("local", Text("local", "局部"), LOCAL, 0.5, _OURS),
    Criterion("long-range", Text("long-range", "远程"), FAR, 0.5, _OURS),
    Criterion("separator sink", Text("separator sink", "分隔符汇"), SEPARATORS, 0.6, _CLARK),
    Criterion(
        "first-token sink",
        Text("first-token sink", "首词元汇"),
        SINK,
        0.3,
        Text("Gu et al. 2025, T = 64", "Gu 等 2025，T = 64"),
    ),
    Criterion("punctuation", Text("punctuation", "标点"), PUNCTUATION, 0.6, _CLARK),
    Criterion("induction", Text("induction", "归纳"), INDUCTION, 0.5, _OURS),
    Criterion("duplicate", Text("duplicate", "重复词元"), DUPLICATE, 0.5, _OURS),
)
"""Every name that rests on one share."""
