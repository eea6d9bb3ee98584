r"""A document as LaTeX, whole and ready for XeLaTeX.

Chinese documents use ``ctex``; an English one that holds Chinese tokens uses ``xeCJK``.
"""

import re

from headwise.document import blocks, text_format
from headwise.document.formulas import math
from headwise.document.text_format import clean, clean_lines, spans
from headwise.lang import Lang, Text

LINE = 132  # characters of numbers that fit on a line in small type; a wider matrix is cut
NORMAL_LINE = 68  # characters of numbers that fit on a line in normal type
HEAT = 12  # tokens on a side of a heat map that is written as a table of percentages

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': r"\textquotedbl{}",
    "-": "{-}",
    "'": "{'}",
    **{character: f"\\{character}" for character in "{}$&#_%"},
    **{
        sign: rf"\ensuremath{{{command}}}"
        for sign, command in (
            *(("≈", r"\approx"), ("√", r"\surd"), ("×", r"\times"), ("−", "-"), ("∞", r"\infty")),
            *(("ᵀ", r"{}^\top"), ("→", r"\to"), ("≤", r"\le"), ("≥", r"\ge"), ("·", r"\cdot")),
            *(("✓", r"\checkmark"), ("✗", r"\times"), ("±", r"\pm")),
        )
    },
    **{chr(0x2400 + code): rf"\textbackslash{{}}x{code:02x}" for code in range(0x22)},
}
_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_SECTIONS = ("section", "section", "section", "subsection", "subsubsection", "paragraph")


def render(document: blocks.Document, lang: Lang = "en") -> str:
    """The document as the source of one XeLaTeX file; its text is not trusted."""
    writer = _Latex(lang, document.precision)
    body = "\n\n".join(map(writer.block, document.blocks))
    title = escape(document.title.to(lang))
    cjk = "" if lang == "zh" or not _WIDE.search(title + body) else "\\usepackage{xeCJK}\n"
    kind = "ctexart" if lang == "zh" else "article"
    return (
        f"% !TeX program = xelatex\n\\documentclass{{{kind}}}\n"
        "\\usepackage[a4paper,margin=2.2cm]{geometry}\n\\usepackage{amsmath,amssymb}\n"
        f"\\providecommand{{\\lt}}{{<}}\\providecommand{{\\gt}}{{>}}\n{cjk}\\setcounter{{MaxMatrixCols}}{{{LINE}}}\n\\setlength{{\\parindent}}{{0pt}}\n"
        f"\\setlength{{\\parskip}}{{6pt}}\n\\title{{{title}}}\n\\date{{}}\n"
        f"\\begin{{document}}\n\\maketitle\n\n{body}\n\n\\end{{document}}\n"
    )


def escape(text: str) -> str:
    r"""Plain text in which LaTeX reads no command.

    Example:
        >>> escape(r"50% of \input{x}")
        '50\\% of \\textbackslash{}input\\{x\\}'
    """
    return "".join(_SPECIAL.get(character, character) for character in clean(text))


class _Latex:
    def __init__(self, lang: Lang, precision: int) -> None:
        self.lang, self.precision, self.labels = lang, precision, blocks.Labels()

    def block(self, block: blocks.Block) -> str:
        match block:
            case blocks.Heading():
                return f"\\{_SECTIONS[min(max(block.level, 1), 5)]}*{{{self.say(block.text)}}}"
            case blocks.Paragraph():
                return self.say(block.text)
            case blocks.Formula():
                return _display(block)
            case blocks.Matrix() | blocks.SideBySide():
                return "\n\n".join(map(self.matrix, blocks.matrices_of(block)))
            case blocks.Working():
                return "\n\n".join(_line(line) for line in block.lines)
            case blocks.Table():
                return self.table(block)
            case blocks.HeatMap():
                return self.heat(block)
            case blocks.Notice():
                mark = r"$\checkmark$" if block.good else r"$\times$"
                return f"\\fbox{{\\parbox{{0.95\\linewidth}}{{{mark} {self.say(block.text)}}}}}"
            case blocks.Code():
                return _listing(block.source)

    def say(self, text: Text) -> str:
        pieces = spans(text, self.lang)
        return "".join(f"${piece}$" if formula else escape(piece) for piece, formula in pieces)

    def matrix(self, matrix: blocks.Matrix) -> str:
        name = math(matrix.symbol)
        symbol = name or rf"\text{{{escape(matrix.symbol.plain)}}}"
        labels = self.labels.new(matrix)
        texts = (text_format.decimal(v, self.precision) for row in matrix.values for v in row)
        widest = max(map(len, texts), default=1)
        columns = max(map(len, matrix.values), default=0)
        parts = list(blocks.slices(columns, LINE // (widest + 2)))
        shown = [] if labels is None else [self.say(labels)]
        for some in parts:
            note = rf"\quad\text{{({self.say(blocks.part(some))})}}" if len(parts) > 1 else ""
            rows = (row[some.start : some.stop] for row in matrix.values)
            body = text_format.bmatrix(rows, self.precision)
            display = f"\\[\n{symbol} = {body}{note}\n\\]"
            small = len(some) * (widest + 2) > NORMAL_LINE
            shown.append(f"{{\\scriptsize\\arraycolsep=2pt\n{display}}}" if small else display)
        return "\n".join(shown)

    def table(self, table: blocks.Table) -> str:
        rows = [table.head, *table.rows]
        width = max(map(len, rows))
        return _tabular("l" * width, [" & ".join(map(self.say, row)) for row in rows])

    def heat(self, heat: blocks.HeatMap) -> str:
        title = rf"\textbf{{{self.say(heat.title)}}}"
        if max(len(heat.rows), len(heat.columns)) > HEAT:
            size = f"{len(heat.rows)} × {len(heat.columns)}"
            note = Text("a heat map of {size} tokens; the HTML format draws it", size=size)
            return f"{title}: {self.say(note)}"
        rows = [" & ".join(["", *map(escape, heat.columns)])]
        for label, row in zip(heat.rows, heat.values, strict=False):
            percents = (text_format.share(v).replace("·", r"$\cdot$") for v in row)
            rows.append(" & ".join([escape(label), *percents]))
        note = Text("weights in percent")
        return f"{title} ({self.say(note)})\n\n{_tabular('l' + 'r' * len(heat.columns), rows)}"


def _tabular(columns: str, rows: list[str]) -> str:
    head, rest = rows[0], "".join(f"{row} \\\\\n" for row in rows[1:])
    return f"\\begin{{tabular}}{{{columns}}}\n{head} \\\\\n\\hline\n{rest}\\end{{tabular}}"


def _display(formula: blocks.Formula) -> str:
    latex = math(formula)
    return f"\\[\n{latex}\n\\]" if latex else escape(formula.plain)


def _line(formula: blocks.Formula) -> str:
    """One line of a working: inline, so that a long sum breaks at its signs and commas."""
    latex = math(formula)
    if latex:
        breaking = latex.replace(", ", r",\allowbreak ")
        return f"{{\\raggedright\\hangindent=2em $\\displaystyle {breaking}$\\par}}"
    return f"\\hangindent=2em {escape(formula.plain)}"


def _listing(source: str) -> str:
    lines = (escape(line).replace(" ", "\\ ") for line in clean_lines(source))
    return "{\\ttfamily " + "\\\\\n".join(line or "~" for line in lines) + "}"
