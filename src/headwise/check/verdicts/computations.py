"""The computations of an article, each with the setting that explains most of its claims."""

import re
from dataclasses import dataclass

from headwise.check.expression_tree import BadArticle
from headwise.check.labels import IndexBases
from headwise.check.settings.choices import (
    MASK_OFF,
    MASK_ON,
    OTHER_MASK,
    SCALE_OFF,
    SCALE_ON,
    Choices,
    mentions,
)
from headwise.check.settings.givens import Givens, read_givens
from headwise.check.settings.parts import read_parts
from headwise.check.settings.setting import CheckOptions, Setting, candidates
from headwise.check.settings.stated_facts import StatedFacts
from headwise.check.settings.stated_sizes import StatedSizes, read_sizes
from headwise.check.statements import Article, Statement
from headwise.check.verdicts.findings import WRONG, Finding
from headwise.check.verdicts.judge import Claim, Judge, Surroundings
from headwise.check.verdicts.verdict import Verdicts
from headwise.lang import Text

_UNSCALED_FORMULA = re.compile(
    r"softmax\W{0,12}(?:scores?|[SE]|[QX][\s$_\d{}·@*]{0,6}[KX][\s^{}\\A-Zᵀ⊤.]{0,8})\s{0,2}[)\]]",
    re.IGNORECASE,
)
"""A softmax of scores that nothing divides."""


@dataclass(frozen=True, eq=False)
class Computation:
    """The verdicts on one computation, and what was taken as given."""

    verdicts: Verdicts
    notes: tuple[Text, ...]


def read_computations(article: Article, text: str, options: CheckOptions) -> list[Computation]:
    """Judge each computation of an article by its own setting.

    Raises:
        BadArticle: if no input is found, or weights are announced and not given.
    """
    sizes, facts = read_sizes(text), StatedFacts.of(text)
    parts = read_parts(text, article.headings)
    around = Surroundings(
        parts,
        Choices(parts, mentions(text, MASK_ON, MASK_OFF), usual=False),
        Choices(parts, mentions(text, SCALE_ON, SCALE_OFF), usual=True),
        bool(OTHER_MASK.search(text)),
        bool(sizes.key) or "d_k" in text or "d_{k}" in text,
        options,
    )
    if not around.scales.mentioned and _UNSCALED_FORMULA.search(text):
        around.scales.open = True
    sets = read_givens(article.statements, text)
    sets = sets[:1] if options.x is not None else sets
    result = []
    spans = [givens.first for givens in sets[1:]] + [len(article.statements)]
    start = 0
    for givens, end in zip(sets, spans, strict=True):
        statements = article.statements[start:end]
        found = _computation(givens, statements, start, sizes, facts, around)
        if found is None and len(sets) > 1:
            continue
        if found is None:
            raise _no_input(facts, givens)
        result.append(found)
        start = end
    if not result:
        raise _no_input(facts, sets[-1])
    return result


def _no_input(facts: StatedFacts, givens: Givens) -> BadArticle:
    if givens.x and facts.announced:
        return BadArticle(
            "weights are announced, but no weight matrix was read, such as W^Q = [[0.5, 1.1], "
            "[1.0, 0.2]]; give them with --weights FILE"
        )
    return BadArticle(
        "no input X found, such as X = [[0.5, 1.1], [1.0, 0.2]]; give it with --x FILE"
    )


def _computation(
    givens: Givens,
    statements: list[Statement],
    first: int,
    sizes: StatedSizes,
    facts: StatedFacts,
    around: Surroundings,
) -> Computation | None:
    near = statements[0].equation.start if statements else 0
    runs: list[tuple[float, int, Judge, IndexBases, list[Claim]]] = []
    for setting in candidates(givens, sizes, facts, around.options, near):
        judge = Judge(setting, statements, around, first)
        bases, claims = judge.best()
        runs.append((sum(map(_cost, claims)), len(runs), judge, bases, claims))
    if not runs:
        return None
    verdicts = Verdicts(*min(runs, key=lambda run: run[:2])[2:])
    verdicts.run()
    given = {name for name, _ in verdicts.judge.setting.given}
    if not given & {"x", "q"} and verdicts.checked <= verdicts.judge.setting.inputs:
        return None
    return Computation(verdicts, _notes(verdicts))


def _cost(claim: Claim) -> float:
    """How much of a claim a setting leaves unexplained: 0 to 1."""
    if claim.reading is None:
        return 1.0 if claim.statement.own.keys else 0.25
    wrong = claim.reading.wrong
    return 0.5 + 0.5 * wrong / max(claim.reading.count, 1) if wrong else 0.0


def _notes(verdicts: Verdicts) -> tuple[Text, ...]:
    setting, bases = verdicts.judge.setting, verdicts.bases
    modes = {claim.mode for claim in verdicts.claims if claim.reading is not None}
    notes = []
    for mode in sorted(modes, key=str):
        if mode.mask == "options":
            notes.append(Text("mask from the options"))
        elif mode.mask == "causal":
            notes.append(Text("the mask is causal"))
        elif mode.mask != "none":
            notes.append(Text("the mask is read from the blocked scores"))
        if mode.scale is not None and verdicts.judge.around.options.scale is not None:
            notes.append(Text("scale from the options"))
        elif mode.scale == 1.0:
            notes.append(Text("scores are not scaled"))
    counts = Text(
        "heads are counted from {head} and rows from {row}, as in the article",
        head=bases.head,
        row=bases.row,
    )
    heads = Text("heads: {heads}", heads=setting.heads)
    return (heads, *setting.notes, *dict.fromkeys(notes), counts)


def contradictions(sizes: StatedSizes, setting: Setting) -> dict[int, Finding]:
    """Stated sizes that all differ from those of the matrices."""
    head_dim = next((t.shape[1] for (key, h), t in setting.given.items() if key == "q" and h), None)
    for key in ("W_q", "q"):
        if head_dim is None and (key, None) in setting.given:
            head_dim = setting.given[key, None].shape[1] // setting.heads
    expected = [(sizes.key, head_dim, Text("head dim"))]
    if ("x", None) in setting.given:
        expected.append((sizes.model, setting.given["x", None].shape[1], Text("columns of X")))
    result: dict[int, Finding] = {}
    for stated, right, what in expected:
        if right and stated and all(size.value != right for size in stated):
            first = stated[0]
            cause = Text("the matrices have another size")
            result[first.start] = Finding(
                first.line, first.start, first.text, str(right), what, WRONG, cause, first.start
            )
    return result
