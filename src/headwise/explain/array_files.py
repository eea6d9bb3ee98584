"""Read arrays of numbers and lists of tokens from files.

| file extension | contents |
|---|---|
| .csv, .tsv | one row per line, with an optional header and token column, see `number_tables` |
| .npy | one numeric array; Python objects are never unpickled |
| .json | ``[[…], …]``, or ``{"x": [[…], …], "tokens": […]}``; ``file.json:name`` for another name |
| .safetensors | the only tensor in the file, or ``file.safetensors:name`` |
| of an article, such as .md, .html, .ipynb or .docx | the array X, or ``file.md:name`` |
"""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.document.reading import from_bytes
from headwise.document.reading.article_file import SUFFIXES as ARTICLES
from headwise.document.reading.text_encoding import decode
from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue, MissingExtra
from headwise.explain.article_arrays import find_array
from headwise.explain.number_tables import NumberTable, from_lists, from_text
from headwise.lang import Text, joined, same

MOST_BYTES, MOST_NUMBERS = 64 * 2**20, 2**22  # the limits for one input file
LONGEST_HEADER = 60  # the maximum number of characters of a header in a message

Notify = Callable[[Text], None]
"""A function that shows the user a note about an input file."""


def silent(_note: Text) -> None:
    """Ignore the note."""


CONTAINERS = (".safetensors", ".pth", ".pt", ".npz", ".json", *ARTICLES)
"""Extensions of files with named arrays; the path may be followed by a colon and a name."""

TYPES = (".csv", ".tsv", ".npy", ".json", ".safetensors", *ARTICLES)


@dataclass(frozen=True, eq=False)
class InputFile:
    """A file named by a command-line option, and optionally the name of a tensor in the file."""

    option: str
    path: Path
    tensor: str | None = None
    notify: Notify = silent

    @classmethod
    def parse(cls, option: str, value: str, notify: Notify = silent) -> "InputFile":
        """Parse ``path``, or for `CONTAINERS` also ``path:tensor``.

        Example:
            >>> InputFile.parse("x", "a.safetensors:layer.0").tensor
            'layer.0'
        """
        for suffix in CONTAINERS:
            path, colon, tensor = value.partition(f"{suffix}:")
            if colon:
                return cls(option, Path(path + suffix), tensor or None, notify)
        return cls(option, Path(value), None, notify)

    @property
    def suffix(self) -> str:
        """The file extension in lower case, such as ".csv"."""
        return self.path.suffix.lower()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Add the option and the path to every `BadFile` raised inside the `with` block."""
        try:
            yield
        except BadFile as error:
            raise BadFile(
                "{option}: {path}: {problem}",
                option=self.option,
                path=clean(str(self.path)),
                problem=error.text,
            ) from error.__cause__

    def unknown_type(self, expected: Text) -> BadFile:
        """Return the error for an unknown file extension."""
        return BadFile(
            "unknown file extension {suffix}; expected {expected}",
            suffix=repr(clean(self.suffix)) if self.suffix else Text("(none)"),
            expected=expected,
        )


@dataclass(frozen=True, eq=False)
class TokenArray:
    """An array in float64, and the tokens of its rows, or None if the file has no tokens."""

    values: Tensor
    tokens: tuple[str, ...] | None = None


def read_matrix(value: str, option: str = "x", notify: Notify = silent) -> TokenArray:
    """Read a finite matrix with at least one row and column from ``path`` or ``path:tensor``.

    ``option`` is the name in error messages. ``notify`` receives notes, for example that a line was
    read as a header.

    Raises:
        BadFile: if the file is missing or does not contain such a matrix.
        MissingExtra: if the package that reads this type is not installed.
    """
    file = InputFile.parse(option, value, notify)
    with file.errors():
        return read_array(file, (2,))


def read_array(file: InputFile, ranks: tuple[int, ...], *, finite: bool = True) -> TokenArray:
    """Read an array whose number of axes is in ``ranks``; call it inside `InputFile.errors`."""
    if file.suffix not in _READERS:
        raise file.unknown_type(Text("one of {types}", types=", ".join(TYPES)))
    check_file(file, MOST_BYTES)
    array = _READERS[file.suffix](file)
    _check_array(array.values, ranks, finite)
    return array


def read_tokens(value: str) -> tuple[str, ...]:
    """Read tokens: ``我,爱,你``, a .json list of strings, or a .txt file with one token per line.

    Raises:
        BadFile: if the file cannot be read, or does not contain a list of strings.
        BadValue: if a token is not valid Unicode.
    """
    file = InputFile.parse("tokens", value)
    if file.suffix not in (".json", ".txt"):
        return _validated(value.split(","))
    with file.errors():
        check_file(file, MOST_BYTES)
        text = decoded(file)
        tokens = text.splitlines() if file.suffix == ".txt" else parse_json(text)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise BadFile('expected a list of strings such as ["I", "see"], got other content')
    return _validated(tokens)


def check_file(file: InputFile, most: int) -> None:
    """Raise `BadFile` if a file is missing, not regular, or larger than ``most`` bytes."""
    try:
        size = file.path.stat().st_size
        regular = file.path.is_file()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such path"
        raise BadFile("cannot open the file: {reason}; check the path", reason=reason) from error
    if not regular:
        raise BadFile("expected a file, got a directory or device")
    if size > most:
        raise BadFile(
            "expected at most {most:,} bytes, got {size:,}; use a smaller file",
            most=most,
            size=size,
        )


def decoded(file: InputFile) -> str:
    """Read the text of a file in any encoding that `text_encoding` supports."""
    return decode(content(file))


def content(file: InputFile) -> bytes:
    """Read the bytes of a file; call `check_file` first."""
    try:
        return file.path.read_bytes()
    except OSError as error:
        raise BadFile("cannot read the file: {reason}", reason=error.strerror) from error


def _validated(tokens: list[str]) -> tuple[str, ...]:
    for i, token in enumerate(tokens):
        if any("\ud800" <= character <= "\udfff" for character in token):
            raise BadValue(
                "tokens: token {i} (counted from 0) is not valid Unicode: {token!r}; use UTF-8",
                i=i,
                token=token,
            )
    return tuple(tokens)


def _table(file: InputFile) -> TokenArray:
    return _tabular(file, from_text(decoded(file), tabs=file.suffix == ".tsv"))


def _tabular(file: InputFile, table: NumberTable) -> TokenArray:
    """Convert a table to an array; notify the user of a header, which may have been data."""
    if table.header is not None:
        cells = ", ".join(map(clean, table.header))
        file.notify(
            Text(
                "{option}: {path}: line {line} is read as the header: {cells}",
                option=file.option,
                path=clean(str(file.path)),
                line=table.line,
                cells=cells if len(cells) <= LONGEST_HEADER else cells[:LONGEST_HEADER] + "…",
            )
        )
    return _token_array(table.rows, table.tokens)


def _article(file: InputFile) -> TokenArray:
    article = from_bytes(content(file), file.suffix)
    return _tabular(file, find_array(article.text, file.tensor))


def _json(file: InputFile) -> TokenArray:
    content = parse_json(decoded(file))
    tokens: tuple[str, ...] | None = None
    if isinstance(content, dict) and file.tensor is None:
        labels = content.get("tokens")
        if "x" not in content or not isinstance(labels, list | None):
            raise BadFile('expected {"x": [[…]], "tokens": […]}, with the numbers under "x"')
        if labels is not None:
            tokens = _validated(list(map(str, labels)))
        content = content["x"]
    elif file.tensor is not None:
        named = content if isinstance(content, dict) else {}
        content = named[_tensor_name(file, sorted(named))]
    return _token_array(from_lists(content, booleans=file.option == "mask"), tokens)


def parse_json(text: str) -> object:
    """Parse a JSON text; raise `BadFile` if it is not valid."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFile(
            "invalid JSON in line {line}, column {column}: {problem}",
            line=error.lineno,
            column=error.colno,
            problem=error.msg,
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadFile(
            "cannot read the JSON: a number is too long or lists are nested too deeply"
        ) from error


def _token_array(rows: list[list[float]], tokens: tuple[str, ...] | None) -> TokenArray:
    _check_count(sum(map(len, rows)))
    return TokenArray(torch.tensor(rows, dtype=torch.float64), tokens)


def _check_count(count: int) -> None:
    if count > MOST_NUMBERS:
        raise BadFile(
            "expected at most {most:,} numbers, got {count:,}; use a smaller array",
            most=MOST_NUMBERS,
            count=count,
        )


def _npy(file: InputFile) -> TokenArray:
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtra.of("numpy", "explain") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers from Python 2, which are supported
            array = np.lib.format.open_memmap(file.path, mode="r")
    except Exception as error:  # any error of the parser on a hostile header means a bad file
        raise BadFile(
            "expected one numeric .npy array, got a damaged file or Python objects, which are "
            "never unpickled; save the array with numpy.save(file, array.astype('float64'))"
        ) from error
    if array.dtype.kind not in "fiub":
        raise BadFile(
            "expected real numbers, got dtype {dtype}; convert the array with .astype('float64')",
            dtype=clean(str(array.dtype)),
        )
    _check_count(array.size)
    return TokenArray(torch.from_numpy(np.array(array, dtype=np.float64, order="C")))


@contextmanager
def open_safetensors(file: InputFile) -> Iterator[Any]:
    """Open a safetensors file; raise `BadFile` if it is damaged, or `MissingExtra`."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtra.of("safetensors", "explain") from error
    try:
        with safe_open(file.path, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise BadFile("cannot read safetensors file: {error}", error=clean(str(error))) from error


def _safetensors(file: InputFile) -> TokenArray:
    with open_safetensors(file) as tensors:
        name = _tensor_name(file, sorted(tensors.keys()))
        _check_count(torch.Size(tensors.get_slice(name).get_shape()).numel())
        tensor = tensors.get_tensor(name)
    if tensor.is_complex():
        raise BadFile("expected real numbers, got dtype {dtype}", dtype=tensor.dtype)
    return TokenArray(tensor.to(torch.float64))


def _tensor_name(file: InputFile, names: list[str]) -> str:
    if file.tensor is None and len(names) == 1:
        return names[0]
    if file.tensor not in names:
        raise BadFile(
            "expected the name of one of {count} tensors in the file ({names}), got {got!r}; write "
            "{file}:NAME",
            count=len(names),
            names=listed(names),
            got=clean(file.tensor or ""),
            file=clean(file.path.name),
        )
    return file.tensor


def listed(names: list[str]) -> str:
    """Join the first eight names for a message, with control characters removed."""
    return ", ".join(map(clean, names[:8])) + (", …" if len(names) > 8 else "")


def _check_array(values: Tensor, ranks: tuple[int, ...], finite: bool) -> None:
    if values.dim() not in ranks or not values.numel():
        raise BadFile(
            "expected an array with {ranks} axes and at least one number, got shape {shape}",
            ranks=joined(Text(" or "), [same(str(rank)) for rank in ranks]),
            shape=tuple(values.shape),
        )
    invalid = ~values.isfinite() if finite else values.isnan()
    if bool(invalid.any()):
        *outer, row, column = invalid.nonzero()[0].tolist()
        raise BadFile(
            "expected finite numbers, got {value} in row {row}, column {column} (both counted from "
            "0); replace this number",
            value=values[(*outer, row, column)].item(),
            row=row,
            column=column,
        )


_READERS: dict[str, Callable[[InputFile], TokenArray]] = {
    **dict.fromkeys((".csv", ".tsv"), _table),
    **dict.fromkeys(ARTICLES, _article),
    ".npy": _npy,
    ".json": _json,
    ".safetensors": _safetensors,
}
