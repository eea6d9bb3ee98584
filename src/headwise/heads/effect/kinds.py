"""The ways to take a head out of a model. Each is another experiment, and has a name of its own."""

from dataclasses import dataclass

from headwise.errors import one_of
from headwise.lang import Text


@dataclass(frozen=True)
class Kind:
    """One way to ablate.

    Attributes:
        name: one word, as it is asked for.
        title: what is done to the head, for a person.
        formula: the same in letters; z is what a head puts out, A its weights, v its values.
        source: who did it so, and what is different here.
        reference: whether it needs other texts, that the model reads first.
    """

    name: str
    title: Text
    formula: Text
    source: Text
    reference: bool = False


ZERO = Kind(
    name="zero",
    title=Text("the head puts out nothing"),
    formula=Text("z = 0"),
    source=Text(
        "Michel et al. 2019, equation 2 (their mask xi_h = 0); Voita et al. 2019, "
        "section 6 (gate 0)"
    ),
)

MEAN = Kind(
    name="mean",
    title=Text("the head puts out what it does on average over other texts"),
    formula=Text("z = E over all real tokens of the reference of z_ref"),
    source=Text(
        "Wang et al. 2022 (interpretability in the wild), section 3, mean ablation; "
        "their mean is for each position of a template, this one is over all positions"
    ),
    reference=True,
)

RESAMPLE = Kind(
    name="resample",
    title=Text("the head puts out what it does on another text, drawn at random"),
    formula=Text("z[b, i] = z_ref[r(b), i], r(b) drawn for each text of each pass"),
    source=Text(
        "Chan et al. 2022 (causal scrubbing), resampling ablation; all heads of one "
        "pass take from the same other text"
    ),
    reference=True,
)

UNIFORM = Kind(
    name="uniform",
    title=Text("the head attends to every allowed key alike"),
    formula=Text(
        "A[i,j] = 1 / number of keys allowed to i: its queries are 0, so that all scores are equal"
    ),
    source=Text(
        "Kovaleva et al. 2019, section 4.6 (disabling a head); theirs is 1/L, padding included"
    ),
)

KINDS = (ZERO, MEAN, RESAMPLE, UNIFORM)
"""Every way there is."""


def kind_named(name: object) -> Kind:
    """The way of that name.

    Raises:
        BadValue: if there is none.

    Example:
        >>> kind_named("zero").title.en
        'the head puts out nothing'
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise one_of("kind", name, tuple(kind.name for kind in KINDS))
