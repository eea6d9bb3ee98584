"""What ``headwise inspect`` may be asked, and what does not go together."""

import math
from dataclasses import dataclass
from pathlib import Path

import click

from headwise.cli import reporting
from headwise.lang import Lang, Text

SUMMARY = Text("Measure and draw what each head of a real model does on a text or a corpus.")

HELP = Text(
    "Measure and draw what each head of a real model does on a text or a corpus.\n\n    "
    "MODEL is a packaged model's name (see `headwise models list`; it is downloaded the "
    "first time),\n    a directory in Hugging Face's format, or a hub id. SENTENCE is "
    "what the model reads. Layers and\n    heads are counted from 0: L0H2 is layer 0, "
    "head 2.\n\n    A corpus is a file of documents: .txt (one a line), .jsonl or "
    ".conllu. With --save the same\n    command goes on where it was interrupted; under "
    'torchrun the documents are shared out.\n\n    \n    headwise inspect minilm "The '
    'dog that chased the cats was tired."\n    headwise inspect ./model --text a.txt '
    "--heads L0H2,L1H8 --format html --output a.html\n    headwise inspect minilm "
    "--corpus a.conllu --save run --output heads.csv\n    headwise inspect --open run "
    "--figures pictures\n    headwise inspect smollm2 --probe repeated\n    "
)

FORMATS = (*reporting.FORMATS, *reporting.TABLES)
"""What the word can write."""


PROBES = ("repeated",)
"""What may be read in place of a text."""


@dataclass(frozen=True)
class Asked:
    """The arguments as given."""

    model: str | None
    sentence: str | None
    text: str | None
    corpus: Path | None
    probe: str | None
    seed: int | None
    open: Path | None
    paragraphs: bool
    no_names: bool
    save: Path | None
    every: float | None
    heads: str | None
    truncate: bool
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
            "--open": self.open,
        }
        return tuple(name for name, value in given.items() if value is not None)

    @property
    def source(self) -> str:
        """The one thing that is to be read."""
        return self.sources[0]

    def check(self) -> None:
        """Refuse what does not go together; no argument is ignored.

        Raises:
            BadValue: if something is missing, or given in vain.
        """
        from headwise.errors import BadValue

        if len(self.sources) != 1:
            got = Text(" and ".join(self.sources) or "nothing", " 和 ".join(self.sources) or "空")
            raise BadValue(
                "sentence: expected one of a sentence, --text FILE, --corpus FILE, "
                "--probe and --open DIR, got {got}; write the sentence in quotes after "
                'the model: headwise inspect minilm "The cat sat."',
                got=got,
            )
        if (self.model is None) != (self.source == "--open"):
            raise BadValue(
                "model: expected a model to read with, and none with --open, which reads "
                "a saved run; see `headwise models list`"
            )
        if self.every is not None and not math.isfinite(self.every):
            raise BadValue(
                "every: expected seconds from 0 on, got {every}; leave it out for every 10",
                every=self.every,
            )
        for name, value, sources in self._options():
            if value and self.source not in sources:
                raise BadValue(
                    f"{name[2:]}: {name} goes with {' or '.join(sources)}, got {self.source}; "
                    "leave it out",
                    f"{name[2:]}：{name} 只用于 {'、'.join(sources)}，收到 {self.source}；请去掉它",
                )

    def _options(self) -> tuple[tuple[str, object, tuple[str, ...]], ...]:
        """Each option that only some sources take."""
        one = ("SENTENCE", "--text")
        return (
            ("--heads", self.heads is not None, one),
            ("--truncate", self.truncate, (*one, "--corpus")),
            ("--save", self.save is not None, ("--corpus",)),
            ("--every", self.every is not None, ("--corpus",)),
            ("--paragraphs", self.paragraphs, ("--corpus",)),
            ("--no-names", self.no_names, ("--corpus", "--probe")),
            ("--seed", self.seed is not None, ("--probe",)),
        )

    def read(self) -> tuple[str | Path | None, ...]:
        """The files that are read, which nothing may be written over."""
        return (self.text, self.corpus, *files_of(self.model or ""))


def parameters(lang: Lang) -> list[click.Parameter]:
    """The arguments and options, in the reader's language."""
    path = click.Path(path_type=Path)
    return [
        click.Argument(["model"], required=False),
        click.Argument(["sentence"], required=False),
        click.Option(["--text"], metavar="FILE", help=_TEXT.to(lang)),
        click.Option(["--corpus"], type=path, metavar="FILE", help=_CORPUS.to(lang)),
        click.Option(["--probe"], type=click.Choice(PROBES), help=_PROBE.to(lang)),
        click.Option(["--seed"], type=int, metavar="NUMBER", help=_SEED.to(lang)),
        click.Option(["--open"], type=path, metavar="DIR", help=_OPEN.to(lang)),
        click.Option(["--save"], type=path, metavar="DIR", help=_SAVE.to(lang)),
        click.Option(
            ["--every"], type=click.FloatRange(min=0), metavar="SECONDS", help=_EVERY.to(lang)
        ),
        click.Option(["--paragraphs"], is_flag=True, help=_PARAGRAPHS.to(lang)),
        click.Option(["--no-names"], is_flag=True, help=_NO_NAMES.to(lang)),
        click.Option(["--heads"], metavar="NAMES", help=_HEADS.to(lang)),
        click.Option(["--truncate"], is_flag=True, help=_TRUNCATE.to(lang)),
        *reporting.options(lang, FORMATS),
        click.Option(["--figures"], type=path, metavar="DIR", help=_FIGURES.to(lang)),
    ]


_TEXT = Text("Read the text from a file.")
_CORPUS = Text("Read every document of a .txt, .jsonl or .conllu file.")
_PROBE = Text(
    "Read 25 random tokens, 4 times over, in place of a text: shows induction heads. "
    "Fewer where the model takes fewer than 100."
)
_SEED = Text("Of --probe's random tokens; 0 by default.")
_OPEN = Text("Open what --save has written; needs no model.")
_SAVE = Text("Keep what is measured in this folder, and go on from there.")
_EVERY = Text("With --save: write after so many seconds; 10 by default.")
_PARAGRAPHS = Text("In a .txt file, a document is a paragraph, not a line.")
_NO_NAMES = Text("Measure a corpus without naming heads, which takes a second model.")
_HEADS = Text("Heads to draw: L0H2,L1H8 or all; by default the three that stand out most.")
_FIGURES = Text("Draw figures as PNG and SVG into this folder as well.")
_TRUNCATE = Text("Cut a text that is too long.")


def files_of(model: str) -> tuple[Path, ...]:
    """The files of a model that is on this machine."""
    from headwise.heads.models import MODELS, place_of

    packaged = {each.name: place_of(each) for each in MODELS}
    try:
        return tuple(packaged.get(model, Path(model)).iterdir()) if model.strip() else ()
    except OSError:  # not there, no folder, or a name too long for the file system
        return ()
