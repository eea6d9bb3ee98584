"""One figure: how large it is, in which fonts it speaks, and the files it becomes."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.document.files import write
from headwise.errors import MissingExtra
from headwise.lang import Lang, Text
from headwise.plots.fonts import Fonts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS = 160
"""Dots an inch of a PNG."""

FORMATS = ("png", "svg")

INK, FAINT, MISSING = "#222222", "#888888", "#e4e4e4"
"""The colours of text, of what is less important, and of cells without a value."""

LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that readers with any colour vision can tell apart. Source: Okabe and Ito 2008."""


@dataclass(frozen=True, eq=False)
class Sheet:
    """Where a figure is drawn.

    Attributes:
        lang: the reader's language.
        fonts: for all its texts.
    """

    lang: Lang
    fonts: Fonts

    @classmethod
    def of(cls, lang: Lang) -> "Sheet":
        """A sheet with the fonts of this machine.

        Raises:
            BadValue: if it is to be Chinese and there is no font for that.
            MissingExtra: if matplotlib is not installed.
        """
        return cls(lang, Fonts.found(lang))

    def figure(self, width: float, height: float, title: Text | None = None) -> "Figure":
        """An empty figure, in inches."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingExtra.of("matplotlib", "plots") from error
        made = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        if title is not None:
            made.suptitle(self.say(title), fontproperties=self.fonts.properties(12), color=INK)
        return made

    def say(self, text: Text) -> str:
        """A text in the reader's language, with no character that the fonts lack."""
        return self.fonts.legible(text.to(self.lang))

    def title(self, axes: "Axes", text: Text) -> None:
        """The title of one panel."""
        font = self.fonts.properties(9.5)
        axes.set_title(self.say(text), fontproperties=font, color=INK)

    def label(self, axes: "Axes", across: Text | None, up: Text | None) -> None:
        """What the two axes are."""
        font = self.fonts.properties(9)
        for name, set_label in ((across, axes.set_xlabel), (up, axes.set_ylabel)):
            if name is not None:
                set_label(self.say(name), fontproperties=font, color=INK)

    def quiet(self, axes: "Axes", size: float = 8) -> None:
        """Small ticks and thin lines."""
        family = list(self.fonts.families)
        axes.tick_params(labelsize=size, length=2, width=0.5, color=FAINT, labelcolor=INK)
        axes.tick_params(labelfontfamily=family)
        for spine in axes.spines.values():
            spine.set(linewidth=0.5, color=FAINT)


def save(figure: "Figure", folder: Path, name: str) -> tuple[Path, ...]:
    """Write a figure as PNG and SVG; the same figure gives the same bytes.

    Raises:
        BadFile: if a file cannot be written.
    """
    import matplotlib

    files = []
    for kind in FORMATS:
        stream = io.BytesIO()
        when = {"Date": None} if kind == "svg" else {}
        with matplotlib.rc_context({"svg.hashsalt": "headwise"}):
            figure.savefig(stream, format=kind, dpi=DOTS, metadata=when)
        files.append(folder / f"{name}.{kind}")
        write(files[-1], stream.getvalue())
    return tuple(files)
