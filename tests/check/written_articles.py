"""Articles written from templates: seven languages, seven ways to print, one planted mistake.

Every figure is computed by plain formulas in float64, without the checker's own computation.
"""

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

NAMES = {
    "en": ("Queries", "Keys", "Values", "Raw scores", "Scaled scores",
           "Attention weights", "Output"),
    "de": ("Anfragen", "Schlüssel", "Werte", "Punktprodukte", "Skalierte Werte",
           "Aufmerksamkeitsgewichte", "Ausgabe"),
    "es": ("Consultas", "Claves", "Valores", "Productos escalares", "Puntuaciones escaladas",
           "Pesos de atención", "Salida"),
    "pl": ("Zapytania", "Klucze", "Wartości", "Iloczyny skalarne", "Po podzieleniu przez √d_k",
           "Wagi uwagi", "Wyjście"),
    "zh": ("查询", "键", "值", "注意力得分", "缩放后的得分", "注意力权重", "输出"),
    "tw": ("查詢", "鍵", "值", "注意力分數", "縮放後的分數", "注意力權重", "輸出"),
    "ja": ("クエリ", "キー", "バリュー", "スコア", "スケール後のスコア", "注意の重み", "出力"),
}  # fmt: skip
SENTENCES = {
    "en": ("We divide by √d_k = √{d}.", "Now we apply a causal mask.", "Input", "Weight matrices"),
    "de": ("Wir teilen durch √{d}.", "Jetzt mit kausaler Maske.", "Eingabe", "Gewichtsmatrizen"),
    "es": (
        "Dividimos entre √{d}.",
        "Ahora con una máscara causal.",
        "Entrada",
        "Matrices de pesos",
    ),
    "pl": ("Dzielimy przez √{d}.", "Teraz z maską przyczynową.", "Wejście", "Macierze wag"),
    "zh": ("除以 √{d}。", "加上因果掩码。", "输入", "权重矩阵"),
    "tw": ("除以 √{d}。", "加上因果遮罩。", "輸入", "權重矩陣"),
    "ja": ("√{d} で割ります。", "因果マスクをかけます。", "入力", "重み行列"),
}
SYMBOLS = ("Q", "K", "V", "S", "S/√d_k", "A", "Z")
STYLES = ("list", "tex", "numpy", "torch", "table", "octave", "rows")
MISTAKES = ("scale", "axis", "transposed", "mask", "mask late", "slip", "truncated", "keys", "row")


@dataclass
class Article:
    """One article; ``planted`` is whether its mistake changes a printed number."""

    text: str = ""
    planted: bool = False
    blocks: list[str] = field(default_factory=list)


def number(value: float, places: int) -> str:
    if value == -float("inf"):
        return "-inf"
    text = f"{value:.{places}f}"
    return text.replace("-", "") if float(text) == 0 else text


def printed(matrix: Tensor, places: int, style: str) -> str:
    rows = [[number(value, places) for value in row] for row in matrix.tolist()]
    if style == "list":
        return "[" + ", ".join("[" + ", ".join(row) + "]" for row in rows) + "]"
    if style == "tex":
        inside = r" \\ ".join(" & ".join(row) for row in rows)
        return rf"\begin{{bmatrix}} {inside} \end{{bmatrix}}"
    if style == "numpy":
        return "[[" + "]\n [".join(" ".join(row) for row in rows) + "]]"
    if style == "torch":
        return "tensor([[" + "],\n        [".join(", ".join(row) for row in rows) + "]])"
    if style == "table":
        head = "| |" + "|".join(f" c{j} " for j in range(len(rows[0]))) + "|\n|"
        body = "\n".join(f"| w{i} | " + " | ".join(row) + " |" for i, row in enumerate(rows))
        return "\n" + head + "---|" * (len(rows[0]) + 1) + "\n" + body + "\n"
    if style == "octave":
        return "\n\n" + "\n".join("   " + "   ".join(row) for row in rows) + "\n"
    return "\n" + "\n".join("  [ " + "  ".join(row) + " ]" for row in rows) + "\n"


def labelled(label: str, matrix: Tensor, places: int, style: str, *, words: bool) -> str:
    body = printed(matrix, places, style)
    if style == "tex":
        symbol = rf"\text{{{label}}}" if words else label.replace("√d_k", r"\sqrt{d_k}")
        return f"$${symbol} = {body}$$"
    if style in ("numpy", "torch"):
        return f"{label}:\n\n```\n{body}\n```"
    if style == "table":
        return f"{label}:\n\n{body}"
    separator = ":" if words and style == "list" else " ="
    return f"{label}{separator} {body}" if style == "list" else f"{label}{separator}{body}"


def write(seed: int, mistake: str | None = None) -> Article:
    """One article with the sizes, the language and the style that a seed gives."""
    choose = random.Random(seed)  # noqa: S311
    generator = torch.Generator().manual_seed(seed)
    language, style = choose.choice(list(NAMES)), choose.choice(STYLES)
    words, projected = choose.random() < 0.5, choose.random() < 0.5
    length, dim, values = choose.randint(2, 4), choose.randint(2, 4), choose.randint(2, 4)
    places, masked = choose.choice((2, 3, 4)), choose.random() < 0.4 or "mask" in str(mistake)
    if mistake == "keys":
        values = dim
    names = NAMES[language] if words else SYMBOLS
    scaled_by, mask_said, input_name, weights_name = SENTENCES[language]

    def draw(rows: int, columns: int) -> Tensor:
        return torch.randint(-1, 3, (rows, columns), generator=generator).double()

    article = Article()

    def show(name: str, matrix: Tensor, digits: int) -> None:
        article.blocks.append(labelled(name, matrix, digits, style, words=words))

    q, k, v = draw(length, dim), draw(length, dim), draw(length, values)
    if projected:
        x = draw(length, 3)
        weights = draw(3, dim), draw(3, dim), draw(3, values)
        show(input_name if words else "X", x, 0)
        article.blocks.append(weights_name)
        for name, weight in zip("QKV", weights, strict=True):
            article.blocks.append(labelled(f"W_{name}", weight, 0, style, words=False))
        q, k, v = (x @ weight for weight in weights)
    for name, matrix in zip(names, (q, k, v), strict=False):
        show(name, matrix, 0)
    _derive(article, show, names, (q, k, v), (places, masked, mistake, choose))
    text = "\n\n".join(article.blocks)
    article.text = text.replace("{scale}", scaled_by.format(d=dim)).replace("{mask}", mask_said)
    return article


def _derive(article, show, names, tables, how):
    """The steps from Q, K and V on, with the planted mistake."""
    q, k, v = tables
    places, masked, mistake, choose = how
    keep = torch.ones(len(q), len(k), dtype=torch.bool).tril()
    score = q @ k.T
    right = score / q.shape[1] ** 0.5
    scaled = {"scale": score, "transposed": right.T}.get(mistake, right)
    hidden = scaled.masked_fill(~keep, -float("inf")) if masked else scaled
    softmax = hidden.softmax(-1)
    if mistake == "axis":
        hidden = scaled
        masked = False
        softmax = scaled.softmax(0)
    elif mistake == "mask":
        softmax = scaled.softmax(-1)
    elif mistake == "mask late":
        softmax = scaled.softmax(-1) * keep
    shown = softmax.clone()
    if mistake == "slip":
        shown[-1, choose.randrange(len(k))] += 0.2
    if mistake == "truncated":
        shown = (softmax * 10**places).floor() / 10**places
    output = softmax @ (k if mistake == "keys" else v)
    if mistake == "row":
        output[choose.randrange(len(q))] += 0.37
    show(names[3], score, 0)
    article.blocks.append("{scale}")
    show(names[4], scaled, places)
    if masked:
        article.blocks.append("{mask}")
    show(names[5], shown, places)
    show(names[6], output, places)
    exact = right.masked_fill(~keep, -float("inf")) if masked else right
    weights = exact.softmax(-1)
    differ = [(scaled, right), (shown, weights), (output, weights @ v)]
    article.planted = any(
        printed(a, places, "list") != printed(b, places, "list") for a, b in differ
    )
