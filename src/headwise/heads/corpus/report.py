"""A corpus run as a document that a person reads."""

from headwise.document import Block, Document, Heading, Table
from headwise.heads.alignment import Alignment
from headwise.heads.corpus.gathered import Half
from headwise.heads.corpus.saved import Run
from headwise.heads.sections import (
    Row,
    every_head,
    legend,
    number,
    of_the_model,
    outstanding,
    written,
)
from headwise.lang import Text, same

MOST_ALIGNED = 10
"""How many of the heads that agree best with gold pairs are listed."""


def report(run: Run) -> Document:
    """The document that a person reads."""
    whole, name = run.gathered.whole(), str(run.model["name"])
    count = whole.number("documents")
    return Document(
        Text(
            f"The heads of {name} on {count:,} documents", f"{name} 的注意力头（{count:,} 个文档）"
        ),
        (
            *of_the_model(run.model, _corpus(run, whole)),
            Heading(Text("What stands out on this corpus", "在此语料上突出的头")),
            *outstanding(whole.statistics, _A_CORPUS),
            *_alignment(whole.alignment),
            *every_head(whole.statistics),
            *legend(),
        ),
        precision=2,
    )


_A_CORPUS = Text(
    "Every number is a mean over all tokens of the corpus. It says what the heads did there, not "
    "what they are for.",
    "每个数值都是对语料全部词元的平均：它说明这些头在那里做了什么，而不是它们的用途。",
)


def _corpus(run: Run, whole: Half) -> list[Row]:
    rows: list[Row] = [
        (Text("corpus", "语料"), same(str(run.corpus["file"]))),
        (Text("documents", "文档数"), written(whole.number("documents"))),
        (Text("tokens", "词元数"), written(whole.number("tokens"))),
    ]
    cut = whole.number("cut")
    if cut:
        rows.append((Text("documents cut", "被截断的文档数"), written(cut)))
    return rows


def _alignment(alignment: Alignment) -> tuple[Block, ...]:
    """The heads that agree best with gold pairs; nothing where the corpus has none."""
    heads = alignment.heads()
    if not heads:
        return ()
    best = sorted(heads, key=lambda head: -alignment.accuracy(head))[:MOST_ALIGNED]
    head = (
        Text("head", "头"),
        Text("right", "正确率"),
        Text("mean weight", "平均权重"),
        Text("AER", "AER"),
    )
    rows = [
        (
            same(str(each)),
            same(number(alignment.accuracy(each))),
            same(number(alignment.mean_weight(each))),
            same(number(alignment.error_rate(each))),
        )
        for each in best
    ]
    title = Text(
        f"Agreement with gold pairs: the best of {len(heads)} heads",
        f"与标注对齐的一致程度：{len(heads)} 个头中最好的",
    )
    return Heading(title), Table(head, rows)
