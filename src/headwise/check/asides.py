"""What stands in an article and is no attention: other layers, gradients, suppositions, masks."""

import re

from headwise.check.equations import Equation
from headwise.check.expression_tree import BLOCKED

_OTHER = re.compile(
    r"layer[\s_-]?norm\w*|\bLN\d?\b|residual|skip[- ]connection|add\s?(?:&|and|\+)\s?norm|\bFFN?\b|"
    r"feed[\s_-]?forward|\bMLP\b|\bre?lu\b|gelu|hidden layer|gradient|backprop\w*|backward|"
    r"(?<![A-Za-z])d[QKVSPOAXWZ](?![a-z])|\\partial|∂|\\nabla|∇|\bloss\b|cross-?entropy|\btargets?\b|"
    r"\blabels\b|learning[ _]rate|\blr\b|positional|\bPE\b|vocab\w*|dropout|accuracy|perplexity|"
    r"variance|\bbeta\b|\bgamma\b|optimi[sz]er|step of size|\bepsilon\b|\beps\b|next[- ]token|"
    r"层归一化|層歸一化|归一化层|残差|殘差|前馈|前饋|梯度|损失|損失|反向传播|反向傳播|学习率|學習率|"
    r"位置编码|位置編碼|目标值|方差|レイヤー正規化|残差|勾配|損失|位置エンコーディング|"
    r"gradiente|pérdida|residuo|Gradient|Verlust|Zielwert|gradient|strat[ay]|rezydual",
    re.IGNORECASE,
)
_METHOD = re.compile(
    r"temperature|\bALiBi\b|\bRoPE\b|rotary|relative position|additive attention|bahdanau|"
    r"linear attention|cosine|sparsemax|温度|溫度|旋转位置|旋轉位置|"
    r"相对位置|相對位置|Temperatur\b|temperatura",
    re.IGNORECASE,
)
"""Another kind of attention than the scaled dot product."""
_SUMMARY = re.compile(
    r"denominator|normali[sz]er|\brow[- ]sums?\b|"
    r"\bsums? of (?:the )?(?:exp|rows?|each row|weights)|"
    r"\bsum\(|\b(?:mean|averaged?)\b[^.\n]{0,30}\bheads?\b|entropy|"
    r"分母|行和|平均(?:注意力|权重|權重)|熵|Nenner|Zeilensumme|denominador|mianownik",
    re.IGNORECASE,
)
"""A sum or a mean of quantities rather than one of them."""
_SUPPOSED = re.compile(
    r"\bif\b[^.\n]{0,60}\b(?:were|was|had)\b|\bwould\b|\bwhat if\b|"
    r"\b(?:we|you)['’]d\b|\bimagine\b|\binstead\b|\bhypothetical|"
    r"如果|假如|要是|若将|もし|\bsi\b[^.\n]{0,40}\b(?:fuera|fuese)|\bwäre\b|gdyby",
    re.IGNORECASE,
)
_MASK = re.compile(r"mask|(?<![A-Za-z])M(?![A-Za-z])|掩码|掩碼|遮罩|マスク|máscara|mask[aię]", re.I)


_ATTENTION = re.compile(r"attention|注意|aufmerksam|atenci|uwag|アテンション", re.I)


def is_other_section(title: str) -> bool:
    """Whether a section is about something else than attention."""
    if _METHOD.search(title):
        return True
    return is_other_layer(title) and not _ATTENTION.search(title)


def is_summary(label: str) -> bool:
    """Whether a label names a sum or a mean, or a quantity of another kind of attention.

    Example:
        >>> is_summary("Row sums"), is_summary("The weighted sum of the values")
        (True, False)
    """
    return bool(_SUMMARY.search(label) or _METHOD.search(label))


def is_other_layer(words: str) -> bool:
    """Whether a label or a heading speaks of something else than attention.

    Example:
        >>> is_other_layer("After LayerNorm"), is_other_layer("Attention weights")
        (True, False)
    """
    return bool(_OTHER.search(words))


def is_supposed(words: str) -> bool:
    """Whether a sentence says what would be, were something else given.

    Example:
        >>> is_supposed("If Q[0] were [1, 0] instead, the weights")
        True
    """
    return bool(_SUPPOSED.search(words))


def is_mask(equation: Equation, words: str) -> bool:
    """Whether an equation prints a mask: 0 and minus infinity, or 0 and 1 under that name."""
    grids = [grid for grid in equation.grids if grid.dims > 0 and grid.whole]
    scalars = [grid for grid in equation.grids if grid.dims == 0]
    others = [c for grid in scalars for c in grid.cells if c.value > BLOCKED]
    if not grids or others or len(grids) + len(scalars) < len(equation.nodes):
        return False
    values = {cell.value for grid in grids for cell in grid.cells}
    blocked = {value for value in values if value <= BLOCKED}
    if blocked:
        return values - blocked <= {0.0}
    return values <= {0.0, 1.0} and bool(_MASK.search(words))
