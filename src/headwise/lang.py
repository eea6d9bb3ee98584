"""The two languages a person reads headwise in.

Every sentence meant for a person is a `Text`: the English and the Chinese side by side, so that
neither can be forgotten.
"""

from dataclasses import dataclass
from typing import Literal

Lang = Literal["en", "zh"]
LANGS: tuple[Lang, ...] = ("en", "zh")


@dataclass(frozen=True)
class Text:
    """One sentence in both languages.

    Example:
        >>> Text("head", "头").to("zh")
        '头'
    """

    en: str
    zh: str

    def to(self, lang: Lang) -> str:
        """The sentence in the language asked for."""
        return self.zh if lang == "zh" else self.en

    def __str__(self) -> str:
        return self.en


def same(text: str) -> Text:
    """A text that is written alike in both languages: a name, a number, a formula."""
    return Text(text, text)
