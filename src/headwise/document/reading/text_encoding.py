"""Detect the encoding of a text file, and decode it."""

import codecs
import re
from collections.abc import Callable

from headwise.errors import BadFile

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks; the mark of UTF-32 begins with the mark of UTF-16 and comes before it."""

SAMPLED = 20_000  # the number of non-ASCII characters used to detect an encoding

LEAST_COMMON = 0.2  # the minimum share of common characters in a text

_CONTROL = re.compile(r"[\0-\x06\x0e-\x1a]")  # characters that do not occur in texts


def decode(raw: bytes) -> str:
    r"""Decode text, with every line ended by ``\n`` and without a byte order mark.

    Text without a byte order mark is decoded as UTF-16 if every second byte is mostly 0, else as
    UTF-8 if it is valid UTF-8. Otherwise, the encoding is the one of GB18030, Big5, Shift JIS,
    EUC-JP, Windows-1250 and Windows-1252 that gives the largest share of common characters.

    Raises:
        BadFile: if the bytes are not text in any of these encodings.

    Example:
        >>> decode("查询 1\r\n".encode("gb18030")), decode("für".encode("cp1252"))
        ('查询 1\n', 'für')
    """
    text = _decoded(raw)
    if text is None or _CONTROL.search(text):
        raise BadFile(
            "expected text in UTF-8, UTF-16, GB18030, Big5 or Shift JIS, got an unknown encoding; "
            "save the file as UTF-8"
        )
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _decoded(raw: bytes) -> str | None:
    marked = next((encoding for mark, encoding in _MARKS if raw.startswith(mark)), None)
    if marked is not None:
        return _strictly(raw, marked)
    wide = _without_mark(raw)
    if wide is not None:
        return _strictly(raw, wide)
    text = _strictly(raw, "utf-8")
    return text if text is not None else _likeliest(raw)


def _strictly(raw: bytes, encoding: str) -> str | None:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        return None


def _without_mark(raw: bytes) -> str | None:
    """Detect UTF-16 without a mark, in which every second byte of ASCII characters is zero."""
    start = raw[:4000]
    if len(start) < 4 or len(raw) % 2:
        return None
    low, high = start[0::2].count(0), start[1::2].count(0)
    most = max(low, high)
    if most <= len(start) // 5 or min(low, high) > most // 10:
        return None
    return "utf-16-be" if low > high else "utf-16-le"


def _likeliest(raw: bytes) -> str | None:
    texts = [(judge, _strictly(raw, encoding)) for encoding, judge in _CANDIDATES]
    found = [(_commonness(text, judge), text) for judge, text in texts if text is not None]
    share, best = max(found, key=lambda pair: pair[0], default=(0.0, None))
    return best if share > LEAST_COMMON else None


def _commonness(text: str, judge: Callable[[str], float]) -> float:
    """Return the mean score of the runs of non-ASCII characters."""
    runs, count = [], 0
    for match in re.finditer(r"[^\0-\x7f]{1,40}", text):
        runs.append(judge(match.group()))
        count += len(match.group())
        if count > SAMPLED:
            break
    return sum(runs) / max(len(runs), 1)


def _chinese(encoding: str, common: range) -> Callable[[str], float]:
    """Return a function that computes the share of common Chinese characters and punctuation."""

    def judge(run: str) -> float:
        raws = (character.encode(encoding, "ignore") for character in run)
        return sum(len(raw) == 2 and raw[0] in common for raw in raws) / len(run)

    return judge


def _japanese(run: str) -> float:
    """Return a score that counts kana and the common characters of JIS level 1."""
    total = 0.0
    for character in run:
        raw = character.encode("shift_jis", "ignore")
        kana = "\u3041" <= character <= "\u30fc"
        total += 1.1 if kana else 0.9 * (len(raw) == 2 and raw[0] in range(0x81, 0x99))
    return total / len(run)


def _latin(letters: str) -> Callable[[str], float]:
    """Return a function that scores accented letters, lower in runs of more than two letters."""

    def judge(run: str) -> float:
        known = sum(character in letters for character in run)
        return known / len(run) if len(run) <= 2 else 0.2 * known / len(run)

    return judge


_WESTERN = "äöüßÄÖÜéèêëàâáãåæçñóòôõíìîïúùûøœÉÁÍÓÚÑÇ¿¡°±²³µ·×÷–—‘’“”«»…√"
_CANDIDATES: tuple[tuple[str, Callable[[str], float]], ...] = (
    ("gb18030", _chinese("gb2312", range(0xA1, 0xD8))),
    ("big5", _chinese("big5", range(0xA1, 0xC7))),
    ("shift_jis", _japanese),
    ("euc_jp", _japanese),
    ("cp1252", _latin(_WESTERN)),
    ("cp1250", _latin("ąćęłńóśźżĄĆĘŁŃÓŚŹŻ°±·×÷–—‘’“”„«»…")),
)
