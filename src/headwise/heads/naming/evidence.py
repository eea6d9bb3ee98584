"""The evidence for names of heads: sums over the texts of one half of a corpus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.errors import BadFile
from headwise.heads.analysis.similarity import Similarity
from headwise.heads.corpus.documents import CorpusDocument
from headwise.heads.metrics import Metric
from headwise.heads.metrics.dispersion import NORMALISED_ENTROPY
from headwise.heads.metrics.distances import FAR, LOCAL, NEXT, PREVIOUS
from headwise.heads.metrics.repetition import DUPLICATE, INDUCTION
from headwise.heads.metrics.token_kinds import PUNCTUATION, SEPARATORS, SINK
from headwise.heads.names import Head
from headwise.heads.naming.annotations import Entities, Syntax, heads_of_layers
from headwise.heads.statistics import Statistics
from headwise.heads.sums import Accumulator, RatioEstimate, SumsByPart, ratio_sums

_SHARES = (PREVIOUS, NEXT, LOCAL, FAR, SEPARATORS, SINK, PUNCTUATION, INDUCTION, DUPLICATE)
JUDGED = (*_SHARES, NORMALISED_ENTROPY)
"""The metrics that names depend on, in the order of the rows of a tensor."""

UNIFORM = "/uniform"


@dataclass
class Evidence(SumsByPart):
    """All sums that names depend on.

    Attributes:
        metrics: for each layer the moments (metrics, H, 6) over texts, and the sums (metrics, 2) of
            a uniform head.
        syntax: the sums for dependency relations, over the texts with a parse.
        entities: the sums for named entities, over the texts with entities.
        similarity: the sums for pairs of heads, over the texts whose weights were stored.
    """

    metrics: Accumulator = field(default_factory=Accumulator)
    syntax: Syntax = field(default_factory=Syntax)
    entities: Entities = field(default_factory=Entities)
    similarity: Similarity = field(default_factory=Similarity)

    def add(
        self,
        statistics: Statistics,
        weights: Mapping[Head, Tensor] | None = None,
        allowed: Mapping[Head, Tensor] | None = None,
        *,
        words: Sequence[Sequence[int]] = (),
        document: CorpusDocument | None = None,
    ) -> None:
        """Add one text.

        Args:
            statistics: the statistics of this text only; they include the metrics of `JUDGED`.
            weights: the attention weights (Lq, Lk) of every head on this text; None leaves out
                syntax, entities and similarity.
            allowed: for every head (Lq, Lk), True where the query may attend to the key.
            words: the tokens of each word of the document, from `attention_maps.pieces`.
            document: the text with its parse and entities.
        """
        for layer, sums in statistics.layers.items():
            rows = [statistics.metrics.index(metric) for metric in JUDGED]
            self.metrics.add(str(layer), ratio_sums(sums.above[rows], sums.below[rows]))
            uniform = torch.stack((sums.uniform_above[rows], sums.uniform_below[rows]), -1)
            self.metrics.add(f"{layer}{UNIFORM}", uniform)
        if not weights or not allowed:
            return
        for part in {head.layer.part for head in weights}:
            same = {head: table for head, table in weights.items() if head.layer.part == part}
            shared = torch.stack([allowed[head] for head in same]).all(0)
            self.similarity.add(same, shared)
        if document is None or len(words) != len(document.words):
            return
        readers = {head: w for head, w in weights.items() if head.layer.part in ("", "encoder")}
        if readers and document.parse is not None:
            self.syntax.add(readers, words, document.parse)
        if readers and document.entities is not None:
            self.entities.add(readers, words, document.entities)

    def heads(self) -> tuple[Head, ...]:
        """Return every measured head, layer by layer."""
        layers = {n: s.shape[1] for n, s in self.metrics.sums.items() if not n.endswith(UNIFORM)}
        return heads_of_layers(layers)

    def share(self, metric: Metric, head: Head) -> RatioEstimate:
        """Return a metric of a head with its moments over texts."""
        row = JUDGED.index(metric)
        return RatioEstimate.of(self.metrics[str(head.layer)][row, head.number])

    def uniform(self, metric: Metric, head: Head) -> float:
        """Return the metric of a head that attends to all allowed keys equally."""
        above, below = self.metrics[f"{head.layer}{UNIFORM}"][JUDGED.index(metric)].tolist()
        return above / below if below else float("nan")

    @staticmethod
    def _unknown(name: str) -> BadFile:
        return BadFile(
            "evidence: expected sums from Evidence.tensors(), got {name!a}; measure again",
            name=name,
        )
