"""Which heads go: by their names, all of them, or those that a saved run has named so."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.cli.ablate.asked import Asked
from headwise.cli.ablate.reading import Reading
from headwise.document.plain import clean
from headwise.errors import BadFile, BadValue
from headwise.heads.corpus.export import SCHEMA
from headwise.heads.corpus.saved import open_run
from headwise.heads.effect.sites import Site, check_exist, every_head
from headwise.heads.export import faults
from headwise.heads.names import Head, parse_heads
from headwise.lang import Text

ALL = "all"

MOST_BYTES = 1 << 26
"""The largest JSON file that is read."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """The heads that were asked for, before the model is known.

    Attributes:
        heads: in the order asked for; None for every head.
        model: what a saved run says of its model; None where the heads come from no run.
        corpus: what it says of its texts.
    """

    heads: tuple[Head, ...] | None
    model: Mapping[str, Any] | None = None
    corpus: Mapping[str, Any] | None = None

    def of(self, found: tuple[Site, ...], kind: str) -> tuple[Head, ...]:
        """The heads of a model.

        Args:
            found: its attentions.
            kind: its architecture.

        Raises:
            BadValue: if it has not these heads, or the run is of another model.
        """
        every = every_head(found)
        if self.model is not None:
            layers = sum(len(site.layers) for site in found)
            ours = {"type": kind, "layers": layers, "heads": len(every)}
            theirs = {name: self.model.get(name) for name in ours}
            if ours != theirs:
                raise BadValue(
                    "open: the run is of another model: {said}; this one is {said_2}; "
                    "name the heads with --heads",
                    said=_said(theirs),
                    said_2=_said(ours),
                )
        if self.heads is None:
            return every
        try:
            check_exist(self.heads, found)
        except BadValue as error:
            if self.model is None:
                raise
            raise BadValue(
                f"open: the run is of another model: {error}; name the heads with --heads",
                f"open：该结果属于另一个模型：{error.text.zh}；请用 --heads 写出各头",
            ) from error
        return self.heads

    def same_texts(self, reading: Reading) -> bool:
        """Whether a run named the heads on the texts that the loss is measured on."""
        if self.corpus is None:
            return False
        name = "file" if reading.source == "probe" else "sha256"
        ours = reading.file if reading.source == "probe" else reading.sha256
        return bool(ours) and self.corpus.get(name) == ours


def choose(asked: Asked) -> Chosen:
    """The heads that were asked for.

    Raises:
        BadFile: if the run cannot be opened.
        BadValue: if a name is no head's, or the run has given no head the name.
    """
    if asked.open is not None:
        return _named(asked.open, asked.named or "")
    words = (asked.heads or "").strip()
    return Chosen(None if words.lower() == ALL else parse_heads(words))


def _named(place: Path, name: str) -> Chosen:
    if _is_folder(place):
        run = open_run(place)
        given = [(str(each.head), each.name) for each in run.names]
        model, corpus = run.model, run.corpus
    else:
        said = _json(place)
        given = [(each["head"], each["name"]) for each in said["names"]]
        model, corpus = said["model"], said["corpus"]
    heads = _heads(place, [head for head, each in given if each == name])
    if not heads:
        there = ", ".join(clean(each) for each in sorted({each for _, each in given})) or "–"
        raise BadValue(
            "named: no head of {place} is named {name!r}; the names there are: {there}",
            place=clean(str(place)),
            name=name,
            there=there,
        )
    return Chosen(heads, model, corpus)


def _is_folder(place: Path) -> bool:
    try:
        return place.is_dir()
    except OSError:  # a name that the file system refuses: reading says why
        return False


def _heads(place: Path, words: list[str]) -> tuple[Head, ...]:
    """What a run calls its heads, each once."""
    try:
        return tuple(dict.fromkeys(Head.parse(word) for word in words))
    except BadValue as error:
        raise _no_run(place, str(error), error.text.zh) from error


def _json(file: Path) -> dict[str, Any]:
    """What ``inspect --corpus`` or ``--probe`` has written as JSON."""
    try:
        if file.exists() and (not file.is_file() or file.stat().st_size > MOST_BYTES):
            raise _no_run(file, Text("it is no file, or too large"))
        said = json.loads(file.read_bytes())
    except BadFile:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _no_run(file, reason, reason) from error
    except (ValueError, RecursionError) as error:
        raise _no_run(file, Text("it is no JSON")) from error
    wrong = faults(said)
    if wrong or said["schema"] != SCHEMA:
        reason = clean(wrong[0])[:200] if wrong else ""
        raise _no_run(
            file, reason or f"it is not of layout {SCHEMA}", reason or f"布局不是 {SCHEMA}"
        )
    return dict(said)


def _no_run(file: Path, en: str, zh: str) -> BadFile:
    name = clean(str(file))
    return BadFile(
        f"open: expected the folder of `inspect --save`, or JSON that `inspect --corpus` or "
        f"`--probe` wrote, got {name}: {en}",
        f"open：应为 `inspect --save` 的文件夹，或 `inspect --corpus`、`--probe` 写出的 JSON，"
        f"收到 {name}：{zh}",
    )


def _said(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {clean(str(value))}" for name, value in facts.items())
