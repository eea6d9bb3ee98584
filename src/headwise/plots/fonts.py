"""Which fonts a figure's texts need. A character that no font has is spelled out, never a box."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.document.plain import clean
from headwise.errors import BadValue, MissingExtra
from headwise.lang import Lang

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties

CHINESE = (
    "notosanscjksc", "notosanssc", "sourcehansanssc", "sourcehansanscn", "wqy-microhei",
    "wqy-zenhei", "pingfang", "hiraginosansgb", "msyh", "microsoftyahei", "simhei", "stheiti",
    "notosanscjk", "sourcehansans", "droidsansfallback", "arialunicode", "unifont",
)  # fmt: skip
"""How the names of font files with Chinese characters begin, the best first."""

PROBE = "注意力头熵前一个词元"
"""Characters that a font for Chinese has to have."""

PLAIN = "DejaVu Sans"
"""The font that matplotlib brings along: Latin, Greek, Cyrillic, mathematics; no Chinese."""


@dataclass(frozen=True, eq=False)
class Fonts:
    """The fonts of a figure, the first for all it has, the second for the rest.

    Attributes:
        families: their names as matplotlib knows them.
        characters: what they have between them.
    """

    families: tuple[str, ...]
    characters: frozenset[int]

    @classmethod
    def found(cls, lang: Lang, files: Iterable[Path] | None = None) -> "Fonts":
        """The fonts on this machine.

        Args:
            lang: the reader's language.
            files: the font files to choose from; None for those that the system has.

        Raises:
            BadValue: if the figures are to be Chinese and no font has Chinese characters.
            MissingExtra: if matplotlib is not installed.
        """
        try:
            from matplotlib import font_manager
        except ImportError as error:
            raise MissingExtra.of("matplotlib", "plots") from error
        system = map(Path, font_manager.findSystemFonts()) if files is None else files
        plain = Path(font_manager.findfont(PLAIN))
        chinese = _chinese(system)
        if chinese is None:
            if lang == "zh":
                raise _no_font()
            return cls((PLAIN,), _characters(plain))
        manager = font_manager.fontManager
        known = [entry for entry in manager.ttflist if Path(entry.fname) == chinese]
        if not known:
            manager.addfont(str(chinese))
            known = [entry for entry in manager.ttflist if Path(entry.fname) == chinese]
        return cls((PLAIN, known[0].name), _characters(plain) | _characters(chinese))

    def properties(self, size: float | None = None) -> "FontProperties":
        """The fonts as matplotlib takes them, in points."""
        from matplotlib.font_manager import FontProperties

        return FontProperties(family=list(self.families), size=size)

    def legible(self, text: str) -> str:
        """A text from outside, harmless and with nothing that these fonts lack.

        A dollar sign is escaped: to matplotlib it begins a formula.
        """
        shown = (c if ord(c) in self.characters else f"⟨{ord(c):x}⟩" for c in clean(text))
        return "".join(shown).replace("$", r"\$")


def _chinese(files: Iterable[Path]) -> Path | None:
    """The best font file with Chinese characters; None where there is none."""
    named: list[tuple[int, str, Path]] = []
    for file in files:
        name = file.stem.lower().replace(" ", "")
        rank = next((i for i, start in enumerate(CHINESE) if name.startswith(start)), None)
        if rank is not None and "bold" not in name and "light" not in name:
            named.append((rank, name, file))
    wanted = {ord(character) for character in PROBE}
    return next((file for _, _, file in sorted(named) if wanted <= _characters(file)), None)


def _characters(file: Path) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(str(file)).get_charmap())
    except (OSError, RuntimeError):  # damaged, or no font
        return frozenset()


def _no_font() -> BadValue:
    return BadValue(
        "figures: no font with Chinese characters was found; install one (Debian: apt "
        "install fonts-noto-cjk or fonts-wqy-microhei), or write the figures with "
        "--lang en"
    )
