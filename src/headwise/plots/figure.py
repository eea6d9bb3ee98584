"""Create a figure with fonts for its language, and write it to files."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.document.files import write
from headwise.document.text_format import clean
from headwise.errors import BadValue, MissingExtra
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.image import AxesImage


CHINESE = (
    "notosanscjksc", "notosanssc", "sourcehansanssc", "sourcehansanscn", "wqy-microhei",
    "wqy-zenhei", "pingfang", "hiraginosansgb", "msyh", "microsoftyahei", "simhei", "stheiti",
    "notosanscjk", "sourcehansans", "droidsansfallback", "arialunicode", "unifont",
)  # fmt: skip
"""The first letters of the names of font files with Chinese characters, the best first."""

PROBE = "注意力头熵前一个词元"  # characters that a Chinese font must have

PLAIN = "DejaVu Sans"
"""The font in matplotlib: Latin, Greek, Cyrillic and mathematical characters, no Chinese."""


@dataclass(frozen=True, eq=False)
class Fonts:
    """The names of the fonts of a figure, the preferred font first, and all their characters."""

    families: tuple[str, ...]
    characters: frozenset[int]

    @classmethod
    def found(cls, lang: Lang, files: Iterable[Path] | None = None) -> "Fonts":
        """Find the fonts of this machine, or those in ``files``.

        Raises:
            BadValue: if the language is Chinese and no font has Chinese characters.
            MissingExtra: if matplotlib is not installed.
        """
        try:
            from matplotlib import font_manager
        except ImportError as error:
            raise MissingExtra.of("matplotlib", "plots") from error
        system = map(Path, font_manager.findSystemFonts()) if files is None else files
        plain = Path(font_manager.findfont(PLAIN))
        chinese = _chinese(system)
        if chinese is None and lang == "zh":
            raise BadValue(
                "figures: no font with Chinese characters was found; install one (Debian: apt "
                "install fonts-noto-cjk or fonts-wqy-microhei), or write the figures with --lang en"
            )
        if chinese is None:
            return cls((PLAIN,), _characters(plain))
        manager = font_manager.fontManager
        if not any(Path(entry.fname) == chinese for entry in manager.ttflist):
            manager.addfont(str(chinese))
        name = next(entry.name for entry in manager.ttflist if Path(entry.fname) == chinese)
        return cls((PLAIN, name), _characters(plain) | _characters(chinese))

    def properties(self, size: float | None = None) -> "FontProperties":
        """Return the fonts as `FontProperties` of a size in points."""
        from matplotlib.font_manager import FontProperties

        return FontProperties(family=list(self.families), size=size)

    def legible(self, text: str) -> str:
        """Replace characters that the fonts lack in untrusted text, and escape ``$`` (formulas)."""
        shown = (c if ord(c) in self.characters else f"⟨{ord(c):x}⟩" for c in clean(text))
        return "".join(shown).replace("$", r"\$")


def _chinese(files: Iterable[Path]) -> Path | None:
    ranked: list[tuple[int, str, Path]] = []
    for file in files:
        name = file.stem.lower().replace(" ", "")
        rank = next((i for i, start in enumerate(CHINESE) if name.startswith(start)), None)
        if rank is not None and "bold" not in name and "light" not in name:
            ranked.append((rank, name, file))
    wanted = set(map(ord, PROBE))
    return next((file for _, _, file in sorted(ranked) if wanted <= _characters(file)), None)


def _characters(file: Path) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(str(file)).get_charmap())
    except (OSError, RuntimeError):  # damaged, or not a font
        return frozenset()


DOTS = 160  # dots per inch of a PNG

INK, FAINT, MISSING = "#222222", "#888888", "#e4e4e4"
"""The colours of text, of less important elements, and of cells without a value."""

LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that are distinct with any colour vision. Source: Okabe and Ito 2008."""


@dataclass(frozen=True, eq=False)
class Sheet:
    """The language and the fonts of figures."""

    lang: Lang
    fonts: Fonts

    @classmethod
    def of(cls, lang: Lang) -> "Sheet":
        """Create a sheet with the fonts of this machine; errors as `Fonts.found`."""
        return cls(lang, Fonts.found(lang))

    def figure(self, width: float, height: float, title: Text | None = None) -> "Figure":
        """Create an empty figure of a size in inches."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingExtra.of("matplotlib", "plots") from error
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        if title is not None:
            figure.suptitle(self.say(title), fontproperties=self.fonts.properties(12), color=INK)
        return figure

    def say(self, text: Text) -> str:
        """Return a text in the language of the sheet, without characters that the fonts lack."""
        return self.fonts.legible(text.to(self.lang))

    def label(self, axes: "Axes", across: Text | None, up: Text | None) -> None:
        """Set the labels of the two axes."""
        font = self.fonts.properties(9)
        for name, set_label in ((across, axes.set_xlabel), (up, axes.set_ylabel)):
            if name is not None:
                set_label(self.say(name), fontproperties=font, color=INK)

    def quiet(self, axes: "Axes", size: float = 8) -> None:
        """Make ticks small and lines thin."""
        family = list(self.fonts.families)
        axes.tick_params(labelsize=size, length=2, width=0.5, color=FAINT, labelcolor=INK)
        axes.tick_params(labelfontfamily=family)
        for spine in axes.spines.values():
            spine.set(linewidth=0.5, color=FAINT)

    def finish_curves(self, axes: "Axes", across: Text, up: Text) -> None:
        """Add the grid, the labels and the legend to axes with curves."""
        axes.grid(axis="y", linewidth=0.4, color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        self.label(axes, across, up)
        self.quiet(axes)
        axes.legend(frameon=False, prop=self.fonts.properties(8), loc="best")

    def colorbar(self, image: "AxesImage", up: Text | None, shrink: float, aspect: float) -> None:
        """Add a colour scale beside an image."""
        figure, axes = image.axes.figure, image.axes
        scale = figure.colorbar(image, ax=axes, pad=0.02, shrink=shrink, aspect=aspect)
        self.quiet(scale.ax, 7)
        scale.outline.set_visible(False)
        self.label(scale.ax, None, up)


def save(figure: "Figure", folder: Path, name: str) -> tuple[Path, ...]:
    """Write a figure as PNG and SVG with reproducible bytes; raise `BadFile` if that fails."""
    import matplotlib

    files = []
    for kind in ("png", "svg"):
        stream = io.BytesIO()
        when = {"Date": None} if kind == "svg" else {}
        with matplotlib.rc_context({"svg.hashsalt": "headwise"}):
            figure.savefig(stream, format=kind, dpi=DOTS, metadata=when)
        files.append(folder / f"{name}.{kind}")
        write(files[-1], stream.getvalue())
    return tuple(files)
