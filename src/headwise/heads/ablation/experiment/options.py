"""The options of an ablation experiment and their conflicts."""

from dataclasses import dataclass
from pathlib import Path

from headwise.errors import BadValue, one_of
from headwise.heads.ablation.methods import METHODS
from headwise.lang import Text, joined, same

ORDERS, AGAINST, PROBES = ("given", "importance"), ("random",), ("repeated",)
"""The values of the options ``order``, ``against`` and ``probe``."""

SEEDS, STEPS = 10, 10
MAX_SEED = 2**31 - 1
MINIMA = {"length": 2, "texts": 1, "steps": 1, "seeds": 2, "seed": 0}


@dataclass(frozen=True, kw_only=True)
class AblationOptions:
    """The options of ``headwise ablate``; each field is a command-line option.

    Attributes:
        sentence: a text. Exactly one of ``sentence``, ``text``, ``corpus``, ``probe`` is required.
        text: a text file; it is cut into pieces of ``length`` tokens.
        corpus: a .txt, .jsonl or .conllu file.
        probe: "repeated" for repeated random tokens.
        length: the number of tokens of a piece; None for 128, or whole documents of a corpus.
        texts: the number of documents, pieces or sequences to read; None for all.
        paragraphs: whether a document of a .txt corpus is a paragraph instead of a line.
        truncate: whether to cut documents that are too long.
        heads: names such as "L0H2,L1H8", or "all". Either ``heads`` or ``open`` is required.
        open: a run that `headwise inspect` saved, a folder or a JSON file.
        named: the name, in the run ``open``, of the heads to remove.
        how: the name of a method in `headwise.heads.ablation.METHODS`.
        order: "given", or "importance" for the least important first.
        steps: the number of steps in which the heads are removed.
        against: "random" to compare with equally many random heads.
        seeds: the number of seeds of the comparison ``against``; None for 10.
        seed: the first seed of random heads, reference texts and probe tokens.
    """

    sentence: str | None = None
    text: str | None = None
    corpus: Path | None = None
    probe: str | None = None
    length: int | None = None
    texts: int | None = None
    paragraphs: bool = False
    truncate: bool = False
    heads: str | None = None
    open: Path | None = None
    named: str | None = None
    how: str = METHODS[0].name
    order: str = ORDERS[0]
    steps: int = STEPS
    against: str | None = None
    seeds: int | None = None
    seed: int = 0

    @property
    def sources(self) -> tuple[str, ...]:
        """The options that name a text; exactly one is valid."""
        names = ("SENTENCE", "--text", "--corpus", "--probe")
        values = (self.sentence, self.text, self.corpus, self.probe)
        return tuple(n for n, value in zip(names, values, strict=True) if value is not None)

    @property
    def source(self) -> str:
        """The option that names the text."""
        return self.sources[0]

    @property
    def num_seeds(self) -> int:
        """The number of seeds of the comparison with random heads; 0 for no comparison."""
        if self.against is None:
            return 0
        return SEEDS if self.seeds is None else self.seeds

    def check(self) -> None:
        """Raise `BadValue` for missing, conflicting and ineffective options."""
        if len(self.sources) != 1:
            sources = joined(Text(" and "), [same(source) for source in self.sources])
            raise BadValue(
                "sentence: expected exactly one of SENTENCE, --text, --corpus and --probe, got "
                "{got}; --probe repeated needs no file",
                got=sources if self.sources else Text("nothing"),
            )
        if (self.heads is None) == (self.open is None):
            raise BadValue(
                "heads: expected either --heads or --open, got {number}; use --heads L0H2,L1H8, "
                "--heads all, or --open RUN --named NAME",
                number=Text("neither") if self.heads is None else Text("both"),
            )
        self._check_values()
        for option, is_set, is_valid, requirement in self._requirements():
            if is_set and not is_valid:
                raise BadValue(
                    "{name}: {option} requires {requirement}; leave out {option} otherwise",
                    name=option[2:],
                    option=option,
                    requirement=requirement,
                )

    def _check_values(self) -> None:
        words = (
            ("how", self.how, tuple(method.name for method in METHODS)),
            ("order", self.order, ORDERS),
            ("against", self.against, (None, *AGAINST)),
            ("probe", self.probe, (None, *PROBES)),
        )
        for name, word, allowed in words:
            if word not in allowed:
                raise one_of(name, word, tuple(filter(None, allowed)))
        for name, minimum in MINIMA.items():
            number = getattr(self, name)
            if number is not None and number < minimum:
                raise BadValue(
                    "{name}: expected at least {minimum}, got {number}",
                    name=name,
                    minimum=minimum,
                    number=number,
                )

    def _requirements(self) -> tuple[tuple[str, bool, bool, Text], ...]:
        """Return dependent options: name, whether set, whether valid, and what they require."""
        corpus, probe = self.source == "--corpus", self.source == "--probe"
        whole = corpus and self.length is None
        return (
            ("--length", self.length is not None, not probe, Text("SENTENCE, --text or --corpus")),
            ("--paragraphs", self.paragraphs, corpus, same("--corpus")),
            ("--truncate", self.truncate, whole, Text("--corpus without --length")),
            ("--open", self.open is not None, self.named is not None, same("--named")),
            ("--named", self.named is not None, self.open is not None, same("--open")),
            ("--seeds", self.seeds is not None, self.against is not None, same("--against")),
        )
