"""A finished run in a folder: it opens again without the model and without the corpus.

    run.json           what was run, for people and programs
    run.safetensors    the sums

The JSON is written last and names the hash of the other, so that the two always belong together.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import headwise
from headwise.document.files import write
from headwise.document.plain import clean
from headwise.errors import BadFile, BadValue
from headwise.heads.corpus.blame import called
from headwise.heads.corpus.bounds import MOST_COUNTED
from headwise.heads.corpus.gathered import Gathered
from headwise.heads.corpus.store import check_size, read_tensors, write_tensors
from headwise.heads.export import schema
from headwise.heads.metrics import MEASURED
from headwise.heads.taxonomy import Named
from headwise.lang import Text

SCHEMA = "headwise.run/1"
JSON, TENSORS = "run.json", "run.safetensors"

MOST_BYTES = 1 << 20
"""The largest run.json that is read."""

PARTS: tuple[tuple[str, tuple[tuple[str, type], ...]], ...] = (
    (
        "model",
        (
            ("name", str), ("source", str), ("class", str), ("type", str),
            ("parameters", int), ("layers", int), ("heads", int),
        ),
    ),
    (
        "corpus",
        (
            ("file", str), ("sha256", str), ("documents", int), ("paragraphs", bool),
            ("truncate", bool),
        ),
    ),
    ("tensors", (("file", str), ("sha256", str))),
    ("identity", ()),
)  # fmt: skip
"""What run.json has to hold, and of what type."""


@dataclass(frozen=True, eq=False)
class Run:
    """What a corpus run found.

    Attributes:
        model: name, source, class, type, parameters, layers, heads.
        corpus: file, sha256, documents, paragraphs, truncate.
        gathered: the sums.
        identity: what the numbers depend on; see `identity`.
    """

    model: Mapping[str, str | int]
    corpus: Mapping[str, str | int | bool]
    gathered: Gathered
    identity: Mapping[str, Any]

    @cached_property
    def names(self) -> tuple[Named, ...]:
        """The names of heads; see `Gathered.names`."""
        return self.gathered.names()


def save(run: Run, folder: Path) -> None:
    """Write a run into a folder that is there.

    Raises:
        BadFile: if it cannot be written.
    """
    write_tensors(folder / TENSORS, run.gathered.kept(), {"schema": SCHEMA})
    said = {
        "schema": SCHEMA,
        "headwise": headwise.__version__,
        "model": dict(run.model),
        "corpus": dict(run.corpus),
        "metrics": [metric.name for metric in MEASURED],
        "identity": dict(run.identity),
        "tensors": {"file": TENSORS, "sha256": _hash(folder / TENSORS)},
    }
    with called("save", "output"):
        write(folder / JSON, json.dumps(said, indent=1) + "\n")


def is_saved(folder: Path) -> bool:
    """Whether a folder holds a finished run."""
    try:
        return (folder / JSON).is_file()
    except OSError:  # a folder that nobody may look into
        return False


def open_run(folder: Path) -> Run:
    """The run that a folder holds. It comes from outside, and nothing in it is taken on trust.

    Raises:
        BadFile: if there is none, a file is damaged or too large, the two files do not belong
            together, a number in them cannot be, or it was measured by another version's metrics.
    """
    said = _read(folder / JSON)
    _check(folder, said)
    try:
        return _opened(folder, said)
    except BadValue as error:
        if str(error).startswith("open: "):
            raise
        raise _wrong(folder, f"{TENSORS}: {error}", f"{TENSORS}：{error.text.zh}") from error


def _opened(folder: Path, said: dict[str, Any]) -> Run:
    """The run of a description that has been checked."""
    tensors, header = read_tensors(folder / TENSORS)
    if header.get("schema") != SCHEMA or said["tensors"]["sha256"] != _hash(folder / TENSORS):
        raise _wrong(
            folder,
            Text(
                "{tensors} is not the one that {json} was written with; copy both files",
                tensors=TENSORS,
                json=JSON,
            ),
        )
    gathered = Gathered.from_tensors(tensors)
    _check_together(folder, said, gathered)
    return Run(said["model"], said["corpus"], gathered, said["identity"])


def _check_together(folder: Path, said: dict[str, Any], gathered: Gathered) -> None:
    """Hold what the description counts against what the sums count."""
    whole, documents = gathered.whole(), said["corpus"]["documents"]
    counted = (
        ("layers", said["model"]["layers"], len(whole.statistics.layers)),
        ("heads", said["model"]["heads"], len(whole.statistics.heads())),
        ("documents", documents, whole.number("documents")),
        ("documents of the first half", (documents + 1) // 2, gathered.first.number("documents")),
    )
    for name, wanted, found in counted:
        if wanted != found:
            raise _wrong(
                folder,
                Text(
                    "{json} says {wanted} {name}, and {tensors} has sums of {found}",
                    json=JSON,
                    wanted=wanted,
                    name=name,
                    tensors=TENSORS,
                    found=found,
                ),
            )
    if whole.number("cut") > documents:
        raise _wrong(folder, Text("{tensors}: more documents cut than there are", tensors=TENSORS))


def _read(file: Path) -> dict[str, Any]:
    try:
        check_size(file, MOST_BYTES)
        said = json.loads(file.read_bytes())
    except BadFile as error:
        raise _wrong(file.parent, f"{JSON}: {error}", f"{JSON}：{error.text.zh}") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _wrong(file.parent, Text("{json}: {reason}", json=JSON, reason=reason)) from error
    except (ValueError, RecursionError) as error:
        raise _wrong(file.parent, Text("{json} is damaged", json=JSON)) from error
    if not isinstance(said, dict) or said.get("schema") != SCHEMA:
        raise _wrong(
            file.parent, Text("{json} is not of layout {schema}", json=JSON, schema=SCHEMA)
        )
    return said


def _check(folder: Path, said: dict[str, Any]) -> None:
    """Hold every entry against the type it has to have, and against the layout of reports."""
    for part, entries in PARTS:
        found = said.get(part)
        fits = isinstance(found, dict) and all(type(found.get(k)) is kind for k, kind in entries)
        if not fits:
            raise _wrong(folder, Text("{part} of {json} lacks an entry", part=part, json=JSON))
    _check_counts(folder, said)
    names = [metric.name for metric in MEASURED]
    if said.get("metrics") != names:
        raise _wrong(
            folder,
            Text(
                "it was measured with other metrics than this version of headwise has; run it again"
            ),
        )


def _check_counts(folder: Path, said: dict[str, Any]) -> None:
    """Hold every number against the layout of reports, which it will be written in."""
    layout = schema()["$defs"]
    for part, rules in (
        ("model", layout["model"]),
        ("corpus", layout["a_corpus"]["properties"]["corpus"]),
    ):
        for name, kind in dict(PARTS)[part]:
            least = rules["properties"][name].get("minimum")
            if kind is int and not least <= said[part][name] <= MOST_COUNTED:
                raise _wrong(
                    folder,
                    Text(
                        "{json}: {part}.{name}: expected {least} to {most_counted}",
                        json=JSON,
                        part=part,
                        name=name,
                        least=least,
                        most_counted=MOST_COUNTED,
                    ),
                )


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _wrong(folder: Path, en: str, zh: str) -> BadFile:
    name = clean(str(folder))
    return BadFile(
        f"open: expected a folder that --save has written, got {name}: {en}",
        f"open：应为 --save 写出的文件夹，收到 {name}：{zh}",
    )
