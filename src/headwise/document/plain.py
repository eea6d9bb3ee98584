"""Text from outside made harmless: what every renderer does before its own escaping."""

import unicodedata

_BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"


def clean(text: str) -> str:
    r"""The text on one line, with nothing in it that acts instead of being read.

    Control characters become their pictures, so that no terminal obeys them; what turns the
    writing direction and other invisible format characters is spelled out; half a surrogate pair
    becomes the replacement character. Joiners stay: emoji and several scripts need them.

    Example:
        >>> clean("a\x1b[31mb\u202ec")
        'a␛[31mb\\u202ec'
    """
    return "".join(_harmless(character) for character in text)


def clean_lines(text: str) -> list[str]:
    """The lines of a text, each made harmless; tabs become four spaces."""
    return [clean(line.replace("\t", "    ")) for line in text.splitlines()]


def _harmless(character: str) -> str:
    code, kind = ord(character), unicodedata.category(character)
    if kind not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    if character in _BREAKS:
        return " " if character == "\n" else _picture(code)
    if kind == "Cs":
        return "\ufffd"
    return character if character in "\u200c\u200d" else _picture(code)


def _picture(code: int) -> str:
    """The symbol for a control character, or its number where there is none."""
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\\u{code:04x}"
