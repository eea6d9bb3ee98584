"""Checkpoints of corpus runs: tensor files, and finished runs in a folder.

A tensor file is a safetensors file with JSON metadata in its header; it is written atomically. A
finished run consists of two files and can be opened without the model and the corpus:

    run.safetensors    the sums
    run.json           model, corpus and options; written last, with the hash of the sums

Both files are validated when they are read.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

import headwise
from headwise.document.files import write
from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue, MissingExtra
from headwise.heads.corpus.accumulated import MOST_COUNTED, Gathered, Half
from headwise.heads.corpus.readers import file_hash
from headwise.heads.inspection_export import schema
from headwise.heads.metrics import MEASURED
from headwise.heads.naming import Named
from headwise.lang import LANGS, Translated, same


@contextmanager
def error_context(argument: str, inner: str) -> Iterator[None]:
    """Re-raise an error about the argument ``inner`` under the name that the user typed.

    Example:
        >>> with error_context("save", "output"):
        ...     raise BadValue("output: no space; take another")
        Traceback (most recent call last):
        headwise.errors.BadValue: save: no space; take another
    """
    try:
        yield
    except BadValue as error:
        if not error.text.en.startswith(f"{inner}: "):
            raise
        texts = (argument + error.text.to(lang).removeprefix(inner) for lang in LANGS)
        raise type(error)(Translated(*texts)) from error


def check_folder(option: str, folder: Path) -> None:
    """Raise `BadFile` unless the folder of an option can be created or written to."""
    try:  # permission bits are not reliable: create an anonymous temporary file
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise _unusable(option, folder, error) from error


def make_folder(option: str, folder: Path) -> None:
    """Create a folder and its parents if they do not exist; raise `BadFile` if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(option, folder, error) from error


def _unusable(option: str, folder: Path, error: OSError) -> BadFile:
    return BadFile(
        "{option}: cannot write into the folder {name}: {reason}; choose another folder",
        option=option,
        name=clean(str(folder)),
        reason=error.strerror or type(error).__name__,
    )


MOST_TENSOR_BYTES, MOST_JSON_BYTES = 1 << 30, 1 << 20
"""The sizes of the largest tensor file and the largest run.json that are read."""

KEY = "headwise"  # the key of the JSON metadata in the header of a tensor file


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors in order, with metadata; raise `BadFile` if they are too large to read back."""
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise MissingExtra.of("safetensors", "inspect") from error
    header = json.dumps({**metadata, "order": list(tensors)})
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {KEY: header})
    if len(content) > MOST_TENSOR_BYTES:
        raise BadFile(
            "save: the result has {num_content:,} bytes, but at most {most_bytes:,} can be read "
            "back; use --no-names, or leave out --save",
            num_content=len(content),
            most_bytes=MOST_TENSOR_BYTES,
        )
    with error_context("save", "output"):
        write(file, content)


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors of a file of `write_tensors` in order, and their metadata.

    Raises `BadFile` if the file cannot be read, is too large or damaged; the caller adds its name.
    """
    try:
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import load
    except ImportError as error:
        raise MissingExtra.of("safetensors", "inspect") from error
    try:
        check_size(file, MOST_TENSOR_BYTES)
        with safe_open(str(file), "pt") as opened:
            header = (opened.metadata() or {}).get(KEY, "")
        metadata = json.loads(header)
        tensors = load(file.read_bytes())
    except BadFile:
        raise
    except FileNotFoundError as error:
        raise BadFile("no such file") from error
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {clean(str(error))[:120]}"
        raise BadFile("damaged ({reason})", reason=reason) from error
    order = metadata.get("order") if isinstance(metadata, dict) else None
    if (
        not isinstance(order, list)
        or not all(isinstance(name, str) for name in order)
        or sorted(order) != sorted(tensors)
    ):
        raise BadFile("its header does not list its tensors")
    return {name: tensors[name] for name in order}, metadata


def check_size(file: Path, most: int) -> None:
    """Raise `BadFile` if a path exists and is not a file of at most ``most`` bytes."""
    if not file.exists():
        return
    if not file.is_file():
        raise BadFile("not a file, but a directory, device or pipe")
    if file.stat().st_size > most:
        raise BadFile("too large: more than {most:,} bytes", most=most)


SCHEMA = "headwise.run/1"
JSON, TENSORS = "run.json", "run.safetensors"

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
"""The entries of run.json and their types."""


@dataclass(frozen=True, eq=False)
class Run:
    """The result of a corpus run.

    ``model`` and ``corpus`` have the entries of `PARTS`, ``gathered`` are the sums; ``identity``
    is everything that the numbers depend on, from `measurement.identity`.
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
    """Write a run into an existing folder; raise `BadFile` if that fails."""
    write_tensors(folder / TENSORS, run.gathered.kept(), {"schema": SCHEMA})
    data = {
        "schema": SCHEMA,
        "headwise": headwise.__version__,
        "model": dict(run.model),
        "corpus": dict(run.corpus),
        "metrics": [metric.name for metric in MEASURED],
        "identity": dict(run.identity),
        "tensors": {"file": TENSORS, "sha256": file_hash(folder / TENSORS)},
    }
    with error_context("save", "output"):
        write(folder / JSON, json.dumps(data, indent=1) + "\n")


def is_saved(folder: Path) -> bool:
    """Return whether a folder contains a finished run."""
    try:
        return (folder / JSON).is_file()
    except OSError:  # a folder without read permission
        return False


def open_run(folder: Path) -> Run:
    """Open the run in a folder. Its files are untrusted and fully validated.

    Raises `BadFile` if the folder has no run, a file is damaged or too large, the two files do not
    match, a number is impossible, or the metrics are those of another version.
    """
    try:
        data = _read_json(folder / JSON)
        _check_entries(data)
        with _error_in(TENSORS):
            tensors, header = read_tensors(folder / TENSORS)
        tensors_hash = file_hash(folder / TENSORS)
        if header.get("schema") != SCHEMA or data["tensors"]["sha256"] != tensors_hash:
            raise BadFile(
                "{tensors} and {json} do not belong together; copy both files of one run",
                tensors=TENSORS,
                json=JSON,
            )
        with _error_in(TENSORS):
            gathered = Gathered.from_tensors(tensors)
            total = gathered.whole()
        _check_totals(data, gathered.first, total)
    except BadValue as error:
        raise BadFile(
            "open: expected a folder from --save, got {folder}: {problem}",
            folder=clean(str(folder)),
            problem=error.text,
        ) from error
    return Run(data["model"], data["corpus"], gathered, data["identity"])


@contextmanager
def _error_in(file: str) -> Iterator[None]:
    try:
        yield
    except BadValue as error:
        raise BadFile("{file}: {problem}", file=file, problem=error.text) from error


def _read_json(file: Path) -> dict[str, Any]:
    with _error_in(JSON):
        try:
            check_size(file, MOST_JSON_BYTES)
            content = file.read_bytes()
        except OSError as error:
            raise BadFile(same(error.strerror or type(error).__name__)) from error
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadFile("{json} is damaged", json=JSON) from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BadFile("the schema of {json} is not {schema}", json=JSON, schema=SCHEMA)
    return data


def _check_entries(data: dict[str, Any]) -> None:
    """Raise `BadFile` if entries, counts or metrics of run.json are invalid."""
    for part, entries in PARTS:
        section = data.get(part)
        if not isinstance(section, dict) or any(
            type(section.get(name)) is not kind for name, kind in entries
        ):
            raise BadFile("{json} lacks an entry of {part}", part=part, json=JSON)
    layout = schema()["$defs"]
    rules = {"model": layout["model"], "corpus": layout["a_corpus"]["properties"]["corpus"]}
    for part, rule in rules.items():
        for name, kind in dict(PARTS)[part]:
            least = rule["properties"][name].get("minimum")
            if kind is int and not least <= data[part][name] <= MOST_COUNTED:
                raise BadFile(
                    "{json}: {part}.{name}: expected a number from {least} to {most_counted}",
                    json=JSON,
                    part=part,
                    name=name,
                    least=least,
                    most_counted=MOST_COUNTED,
                )
    if data.get("metrics") != [metric.name for metric in MEASURED]:
        raise BadFile(
            "it was measured with the metrics of another version of headwise; run it again"
        )


def _check_totals(data: dict[str, Any], first: Half, total: Half) -> None:
    documents = data["corpus"]["documents"]
    counts = (
        ("layers", data["model"]["layers"], len(total.statistics.layers)),
        ("heads", data["model"]["heads"], len(total.statistics.heads())),
        ("documents", documents, total.number("documents")),
        ("documents of the first half", (documents + 1) // 2, first.number("documents")),
    )
    for name, expected, measured in counts:
        if expected != measured:
            raise BadFile(
                "{json} lists {wanted} {name}, but {tensors} has {found}",
                json=JSON,
                wanted=expected,
                name=name,
                tensors=TENSORS,
                found=measured,
            )
    if total.number("cut") > documents:
        raise BadFile("{tensors}: more truncated documents than documents", tensors=TENSORS)
