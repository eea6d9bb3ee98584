"""What ``headwise ablate`` may be asked, and what does not go together."""

from dataclasses import dataclass
from pathlib import Path

import click

from headwise.cli import reporting
from headwise.cli.inspect.asked import PROBES, files_of
from headwise.lang import Lang, Text, same

SUMMARY = Text("Measure and draw what a model loses as heads are taken out of it.")

HELP = Text(
    "Measure and draw what a model loses as heads are taken out of it.\n\n    MODEL is "
    "a packaged model's name (see `headwise models list`), a directory in Hugging "
    "Face's\n    format, or a hub id. It must predict the next token: the loss of that "
    "is what is measured, in\n    nats a token. Layers and heads are counted from 0: "
    "L0H2 is layer 0, head 2.\n\n    The heads go one after the other and stay out. "
    "Each interval is of 95 %: over texts, or with\n    --against random over seeds, "
    "each with texts and random heads of its own.\n\n    \b\n    headwise ablate "
    "smollm2 --probe repeated --heads L18H6,L11H4 --against random\n    headwise ablate "
    "./model --corpus a.txt --heads all --order importance --figures pictures\n    "
    "headwise ablate smollm2 --text book.txt --heads L3H4 --how mean --output "
    "effect.json\n    headwise ablate smollm2 --corpus a.txt --open run --named "
    "induction\n    "
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
            got = got if self.sources else Text("nothing")
            raise BadValue(
                "sentence: expected one of a sentence, --text FILE, --corpus FILE and "
                "--probe, got {got}; for random tokens that repeat: --probe repeated",
                got=got,
            )
        if (self.heads is None) == (self.open is None):
            number = Text("neither") if self.heads is None else Text("both")
            raise BadValue(
                "heads: expected either --heads or --open, got {number}; say which heads "
                "go: --heads L0H2,L1H8, --heads all, or --open RUN --named NAME",
                number=number,
            )
        for name, value, fits, needs in self._options():
            if value and not fits:
                raise BadValue(
                    "{name}: {name_2} goes with {needs}; leave it out, or give that as well",
                    name=name[2:],
                    name_2=name,
                    needs=needs,
                )

    def _options(self) -> tuple[tuple[str, object, bool, Text], ...]:
        """Each option that takes another: whether it is given, and whether that is."""
        corpus = self.source == "--corpus"
        text = Text("a text or --corpus")
        whole = Text("a whole --corpus")
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


_TEXT = Text("Read a text file, cut into pieces of --length tokens.")
_CORPUS = Text("Read every document of a .txt, .jsonl or .conllu file.")
_PROBE = Text(
    "Read 25 random tokens, 4 times over, 48 such sequences; the loss is of the repetitions."
)
_LENGTH = Text(
    "Cut what is read into pieces of so many tokens, and leave out what is shorter; "
    "128 for a text, documents are whole."
)
_TEXTS = Text("Read only so many documents, pieces or sequences.")
_PARAGRAPHS = Text("In a .txt file, a document is a paragraph, not a line.")
_TRUNCATE = Text("Cut documents that are too long.")
_HEADS = Text("Heads to take out: L0H2,L1H8 or all.")
_OPEN = Text(
    "Take the heads from a run that `headwise inspect` saved: the folder of --save, or its JSON."
)
_NAMED = Text("With --open: the heads that the run gives this name, such as induction.")
_HOW = Text(
    "What a head puts out instead: nothing, its mean over other texts, what it does on "
    "another text, or the mean of the values it may see; zero by default. For mean and "
    "resample every second text is such another one, and is not measured on."
)
_ORDER = Text(
    "As given, or the least important first, by its gradient, anew at each step; given by default."
)
_STEPS = Text("In how many steps the heads go, each of one head at least; 10 by default.")
_AGAINST = Text("Hold the heads against as many others, drawn at random for each seed.")
_SEEDS = Text("With --against: how many seeds; the texts are dealt out to them; 10 by default.")
_SEED = Text(
    "The first seed of all that is drawn: random heads, other texts, --probe's tokens; "
    "0 by default."
)
_FIGURES = Text("Draw the curve as PNG and SVG into this folder as well.")
