"""What ``headwise ablate`` may be asked, and what does not go together."""

from dataclasses import dataclass
from pathlib import Path

import click

from headwise.cli import reporting
from headwise.cli.inspect.asked import PROBES, files_of
from headwise.lang import Lang, Text, same

SUMMARY = Text(
    "Measure and draw what a model loses as heads are taken out of it.",
    "测量并画出逐步移除若干头后模型损失的变化。",
)

HELP = Text(
    """Measure and draw what a model loses as heads are taken out of it.

    MODEL is a packaged model's name (see `headwise models list`), a directory in Hugging Face's
    format, or a hub id. It must predict the next token: the loss of that is what is measured, in
    nats a token. Layers and heads are counted from 0: L0H2 is layer 0, head 2.

    The heads go one after the other and stay out. Each interval is of 95 %: over texts, or with
    --against random over seeds, each with texts and random heads of its own.

    \b
    headwise ablate smollm2 --probe repeated --heads L18H6,L11H4 --against random
    headwise ablate ./model --corpus a.txt --heads all --order importance --figures pictures
    headwise ablate smollm2 --text book.txt --heads L3H4 --how mean --output effect.json
    headwise ablate smollm2 --corpus a.txt --open run --named induction
    """,
    """测量并画出逐步移除若干头后模型损失的变化。

    MODEL 是内置模型的名称（见 `headwise models list`）、Hugging Face 格式的文件夹，或 hub 名称。
    模型须能预测下一词元：测量的就是它的损失，以奈特每词元计。层和头都从 0 数起：
    L0H2 表示第 0 层第 2 头。

    各头依次移除，不再放回。区间均为 95 %，对文本而言。
    使用 --against random 时则对种子而言，每个种子有各自的文本和随机头。

    \b
    headwise ablate smollm2 --probe repeated --heads L18H6,L11H4 --against random
    headwise ablate ./model --corpus a.txt --heads all --order importance --figures pictures
    headwise ablate smollm2 --text book.txt --heads L3H4 --how mean --output effect.json
    headwise ablate smollm2 --corpus a.txt --open run --named induction
    """,
)

FORMATS = (*reporting.FORMATS, "csv")
"""What the word can write."""

HOWS = ("zero", "mean", "resample", "uniform")
"""The ways to take a head out: `headwise.heads.effect.KINDS`, named here without loading torch."""

ORDERS = ("given", "importance")
"""In which order the heads go."""

AGAINST = ("random",)
"""What the heads are held against."""

SEEDS, STEPS = 10, 10
MOST_SEED = 2**31 - 1


@dataclass(frozen=True)
class Asked:
    """The arguments as given."""

    model: str
    sentence: str | None
    text: str | None
    corpus: Path | None
    probe: str | None
    length: int | None
    texts: int | None
    paragraphs: bool
    truncate: bool
    heads: str | None
    open: Path | None
    named: str | None
    how: str
    order: str
    steps: int
    against: str | None
    seeds: int | None
    seed: int
    format: str | None
    output: Path | None
    figures: Path | None

    @property
    def sources(self) -> tuple[str, ...]:
        """Everything that is to be read, of which there should be one."""
        given = {
            "SENTENCE": self.sentence,
            "--text": self.text,
            "--corpus": self.corpus,
            "--probe": self.probe,
        }
        return tuple(name for name, value in given.items() if value is not None)

    @property
    def source(self) -> str:
        """The one thing that is to be read."""
        return self.sources[0]

    @property
    def draws(self) -> int:
        """How many seeds the heads are held against others with; 0 for none."""
        if self.against is None:
            return 0
        return SEEDS if self.seeds is None else self.seeds

    def check(self) -> None:
        """Refuse what does not go together; no argument is ignored.

        Raises:
            BadValue: if something is missing, or given in vain.
        """
        from headwise.errors import BadValue

        if len(self.sources) != 1:
            got = Text(" and ".join(self.sources), "、".join(self.sources))
            got = got if self.sources else Text("nothing", "空")
            raise BadValue(
                "sentence: expected one of a sentence, --text FILE, --corpus FILE and --probe, got "
                f"{got.en}; for random tokens that repeat: --probe repeated",
                "sentence：应给出句子、--text 文件、--corpus 文件、--probe 之一，"
                f"收到 {got.zh}；可用 --probe repeated 读重复的随机词元",
            )
        if (self.heads is None) == (self.open is None):
            number = Text("neither", "零个") if self.heads is None else Text("both", "两个")
            raise BadValue(
                f"heads: expected either --heads or --open, got {number.en}; say which heads go: "
                "--heads L0H2,L1H8, --heads all, or --open RUN --named NAME",
                f"heads：应给出 --heads 或 --open 之一，收到{number.zh}；"
                "请说明移除哪些头：--heads L0H2,L1H8、--heads all，或 --open 结果 --named 名称",
            )
        for name, value, fits, needs in self._options():
            if value and not fits:
                raise BadValue(
                    f"{name[2:]}: {name} goes with {needs.en}; leave it out, or give that as well",
                    f"{name[2:]}：{name} 只与 {needs.zh} 同用；请去掉它，或同时给出后者",
                )

    def _options(self) -> tuple[tuple[str, object, bool, Text], ...]:
        """Each option that takes another: whether it is given, and whether that is."""
        corpus = self.source == "--corpus"
        text = Text("a text or --corpus", "文本或 --corpus")
        whole = Text("a whole --corpus", "不切片的 --corpus")
        return (
            ("--length", self.length is not None, self.source != "--probe", text),
            ("--paragraphs", self.paragraphs, corpus, same("--corpus")),
            ("--truncate", self.truncate, corpus and self.length is None, whole),
            ("--open", self.open is not None, self.named is not None, same("--named")),
            ("--named", self.named is not None, self.open is not None, same("--open")),
            ("--seeds", self.seeds is not None, self.against is not None, same("--against")),
        )

    def read(self) -> tuple[str | Path | None, ...]:
        """The files that are read, which nothing may be written over."""
        run = () if self.open is None else _files_of_run(self.open)
        return (self.text, self.corpus, *run, *files_of(self.model))


def _files_of_run(place: Path) -> tuple[Path, ...]:
    """A run as a file, or the files of its folder."""
    from headwise.heads.corpus.saved import JSON, TENSORS

    return (place, place / JSON, place / TENSORS)


def parameters(lang: Lang) -> list[click.Parameter]:
    """The arguments and options, in the reader's language."""
    path = click.Path(path_type=Path)
    return [
        click.Argument(["model"]),
        click.Argument(["sentence"], required=False),
        click.Option(["--text"], metavar="FILE", help=_TEXT.to(lang)),
        click.Option(["--corpus"], type=path, metavar="FILE", help=_CORPUS.to(lang)),
        click.Option(["--probe"], type=click.Choice(PROBES), help=_PROBE.to(lang)),
        click.Option(
            ["--length"], type=click.IntRange(min=2), metavar="TOKENS", help=_LENGTH.to(lang)
        ),
        click.Option(
            ["--texts"], type=click.IntRange(min=1), metavar="NUMBER", help=_TEXTS.to(lang)
        ),
        click.Option(["--paragraphs"], is_flag=True, help=_PARAGRAPHS.to(lang)),
        click.Option(["--truncate"], is_flag=True, help=_TRUNCATE.to(lang)),
        click.Option(["--heads"], metavar="NAMES", help=_HEADS.to(lang)),
        click.Option(["--open"], type=path, metavar="RUN", help=_OPEN.to(lang)),
        click.Option(["--named"], metavar="NAME", help=_NAMED.to(lang)),
        click.Option(["--how"], type=click.Choice(HOWS), default=HOWS[0], help=_HOW.to(lang)),
        click.Option(
            ["--order"], type=click.Choice(ORDERS), default=ORDERS[0], help=_ORDER.to(lang)
        ),
        click.Option(
            ["--steps"],
            type=click.IntRange(min=1),
            default=STEPS,
            metavar="NUMBER",
            help=_STEPS.to(lang),
        ),
        click.Option(["--against"], type=click.Choice(AGAINST), help=_AGAINST.to(lang)),
        click.Option(
            ["--seeds"], type=click.IntRange(min=2), metavar="NUMBER", help=_SEEDS.to(lang)
        ),
        click.Option(
            ["--seed"],
            type=click.IntRange(0, MOST_SEED),
            default=0,
            metavar="NUMBER",
            help=_SEED.to(lang),
        ),
        *reporting.options(lang, FORMATS),
        click.Option(["--figures"], type=path, metavar="DIR", help=_FIGURES.to(lang)),
    ]


_TEXT = Text(
    "Read a text file, cut into pieces of --length tokens.",
    "读取文本文件，按 --length 个词元切成片段。",
)
_CORPUS = Text(
    "Read every document of a .txt, .jsonl or .conllu file.",
    "读取 .txt、.jsonl 或 .conllu 文件中的所有文档。",
)
_PROBE = Text(
    "Read 25 random tokens, 4 times over, 48 such sequences; the loss is of the repetitions.",
    "读重复 4 次的 25 个随机词元，共 48 条序列；损失只算重复的部分。",
)
_LENGTH = Text(
    "Cut what is read into pieces of so many tokens, and leave out what is shorter; 128 for a "
    "text, documents are whole.",
    "按这么多词元切成片段，不足的舍去；文本默认 128，文档默认不切。",
)
_TEXTS = Text(
    "Read only so many documents, pieces or sequences.", "只读前这么多个文档、片段或序列。"
)
_PARAGRAPHS = Text(
    "In a .txt file, a document is a paragraph, not a line.",
    "在 .txt 文件中，文档是段落而不是行。",
)
_TRUNCATE = Text("Cut documents that are too long.", "截断过长的文档。")
_HEADS = Text("Heads to take out: L0H2,L1H8 or all.", "要移除的头：L0H2,L1H8 或 all。")
_OPEN = Text(
    "Take the heads from a run that `headwise inspect` saved: the folder of --save, or its JSON.",
    "从 `headwise inspect` 的结果中取头：--save 的文件夹，或其 JSON 文件。",
)
_NAMED = Text(
    "With --open: the heads that the run gives this name, such as induction.",
    "与 --open 同用：在该结果中得到此名称的头，例如 induction。",
)
_HOW = Text(
    "What a head puts out instead: nothing, its mean over other texts, what it does on another "
    "text, or the mean of the values it may see; zero by default. For mean and resample every "
    "second text is such another one, and is not measured on.",
    "该头改为输出什么：零、其在其他文本上的平均、其在另一文本上的结果，或可见值的平均；默认 zero。"
    "用 mean 和 resample 时，每隔一个文本作为其他文本，不参与测量。",
)
_ORDER = Text(
    "As given, or the least important first, by its gradient, anew at each step; given by default.",
    "按给出的顺序，或按梯度重要性从小到大，每步重算；默认 given。",
)
_STEPS = Text(
    "In how many steps the heads go, each of one head at least; 10 by default.",
    "分多少步移除，每步至少一个头；默认 10。",
)
_AGAINST = Text(
    "Hold the heads against as many others, drawn at random for each seed.",
    "与同样多的其他头比较，每个种子随机抽取一次。",
)
_SEEDS = Text(
    "With --against: how many seeds; the texts are dealt out to them; 10 by default.",
    "与 --against 同用：种子个数，文本由各种子分担；默认 10。",
)
_SEED = Text(
    "The first seed of all that is drawn: random heads, other texts, --probe's tokens; 0 by "
    "default.",
    "所有抽取的起始种子：随机的头、其他文本、--probe 的词元；默认 0。",
)
_FIGURES = Text(
    "Draw the curve as PNG and SVG into this folder as well.",
    "同时将曲线以 PNG 和 SVG 写入此文件夹。",
)
