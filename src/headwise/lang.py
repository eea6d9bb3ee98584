"""Messages in English and Chinese: English is the source text, Chinese comes from a catalogue.

The Chinese catalogue is written in ``locale/zh/*.po``, one file per room, and compiled by
``make messages`` into the ``.mo`` file that `gettext` reads.
"""

import gettext
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

Lang = Literal["en", "zh"]
LANGS: tuple[Lang, ...] = ("en", "zh")
LOCALE_DIR = Path(__file__).parent / "locale"


class Text:
    """A message that is shown in the reader's language.

    Args:
        source: the English text; with values it is a template for `str.format`.
        values: the values that replace the fields of the template; a `Text` among them is
            translated too.

    Example:
        >>> Text("head {index}", index=2).to("zh")
        '头 2'
    """

    def __init__(self, source: str, /, **values: object) -> None:
        self.source = source
        self.values = values

    def to(self, lang: Lang) -> str:
        """Return the message in the given language."""
        return self.filled(self.template(lang), lang)

    def template(self, lang: Lang) -> str:
        """Return the message before its fields are replaced."""
        plain = lang == "en" or not self.source  # gettext("") is the header of the catalogue
        return self.source if plain else _catalogue(lang).gettext(self.source)

    def filled(self, template: str, lang: Lang) -> str:
        """A template, or a part of it, with its fields replaced by the values."""
        values = {n: v.to(lang) if isinstance(v, Text) else v for n, v in self.values.items()}
        return template.format_map(values) if values else template

    @property
    def en(self) -> str:
        return self.to("en")

    @property
    def zh(self) -> str:
        return self.to("zh")

    def __str__(self) -> str:
        return self.en

    def __repr__(self) -> str:
        return f"Text({self.en!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and (self.en, self.zh) == (other.en, other.zh)

    def __hash__(self) -> int:
        return hash(self.en)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return Translated, (self.en, self.zh)


class Translated(Text):
    """A message that already exists in both languages, for example read from a report.

    Example:
        >>> Translated("head", "头").to("zh")
        '头'
    """

    def __init__(self, en: str, zh: str) -> None:
        super().__init__(en)
        self._zh = zh

    def template(self, lang: Lang) -> str:
        return self._zh if lang == "zh" else self.source

    def filled(self, template: str, lang: Lang) -> str:
        return template


def same(text: str) -> Text:
    """Return a text that is the same in both languages: a name, a number, a formula."""
    return Translated(text, text)


def enumeration(items: Sequence[str], most: int) -> Text:
    """The first items of a list, with the commas of each language, and dots where there are more.

    Example:
        >>> enumeration(["a", "b", "c"], 2).en, enumeration(["a", "b", "c"], 2).zh
        ('a, b, …', 'a、b、…')
    """
    shown = [*items[:most], *(["…"] if len(items) > most else [])]
    return Translated(", ".join(shown), "、".join(shown))


def joined(separator: Text, texts: "list[Text] | tuple[Text, ...]") -> Text:
    """Join the texts, with a separator in the same language between them."""
    return Translated(*(separator.to(lang).join(text.to(lang) for text in texts) for lang in LANGS))


@cache
def _catalogue(lang: Lang) -> gettext.NullTranslations:
    return gettext.translation("headwise", LOCALE_DIR, [lang])
