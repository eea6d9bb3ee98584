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
    title=Text("the head puts out nothing", "该头的输出为零"),
    formula=Text("z = 0", "z = 0"),
    source=Text(
        "Michel et al. 2019, equation 2 (their mask xi_h = 0); "
        "Voita et al. 2019, section 6 (gate 0)",
        "Michel 等 2019，式 2（掩码 xi_h = 0）；Voita 等 2019，第 6 节（门为 0）",
    ),
)

MEAN = Kind(
    name="mean",
    title=Text(
        "the head puts out what it does on average over other texts",
        "该头输出其在其他文本上的平均值",
    ),
    formula=Text(
        "z = E over all real tokens of the reference of z_ref",
        "z = E[z_ref]，对参考文本的所有真实词元取平均",
    ),
    source=Text(
        "Wang et al. 2022 (interpretability in the wild), section 3, mean ablation; their mean is "
        "for each position of a template, this one is over all positions",
        "Wang 等 2022（interpretability in the wild），第 3 节，均值消融；"
        "原文按模板的每个位置取平均，此处对所有位置取平均",
    ),
    reference=True,
)

RESAMPLE = Kind(
    name="resample",
    title=Text(
        "the head puts out what it does on another text, drawn at random",
        "该头输出其在随机抽取的另一文本上的结果",
    ),
    formula=Text(
        "z[b, i] = z_ref[r(b), i], r(b) drawn for each text of each pass",
        "z[b, i] = z_ref[r(b), i]，每次前向为每个文本抽取 r(b)",
    ),
    source=Text(
        "Chan et al. 2022 (causal scrubbing), resampling ablation; all heads of one pass take "
        "from the same other text",
        "Chan 等 2022（causal scrubbing），重采样消融；同一次前向的各头取自同一文本",
    ),
    reference=True,
)

UNIFORM = Kind(
    name="uniform",
    title=Text("the head attends to every allowed key alike", "该头对所有允许的键给予相同权重"),
    formula=Text(
        "A[i,j] = 1 / number of keys allowed to i: its queries are 0, so that all scores are equal",
        "A[i,j] = 1 / i 可关注的键数：其查询为 0，因此所有分数相等",
    ),
    source=Text(
        "Kovaleva et al. 2019, section 4.6 (disabling a head); theirs is 1/L, padding included",
        "Kovaleva 等 2019，第 4.6 节（禁用一个头）；原文为 1/L，含填充",
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
