"""Numbers and tokens from files somebody gives: read by file type, bounded, refused in one line.

| type | what is read |
|---|---|
| .csv, .tsv | one row a line; a header and a column of tokens are recognised, see `tables` |
| .npy | one array of numbers; nothing is ever unpickled |
| .json | ``[[…], …]``, or ``{"x": [[…], …], "tokens": […]}`` |
| .safetensors | the only tensor in the file, or ``file.safetensors:name`` |
"""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headwise.document.plain import clean
from headwise.errors import BadFile, BadValue, MissingExtra
from headwise.explain.tables import Ragged, from_lists, from_text
from headwise.lang import Text

MOST_BYTES = 64 * 2**20
"""The largest file that is read."""

MOST_NUMBERS = 2**22
"""The most numbers a file may hold."""

CONTAINERS = (".safetensors", ".pth", ".pt")
"""Files that hold several named tensors: a name may follow after a colon."""

TYPES = (".csv", ".tsv", ".npy", ".json", ".safetensors")


@dataclass(frozen=True, eq=False)
class Source:
    """Where numbers come from: which argument asked, and which file it named."""

    argument: str
    path: Path
    part: str | None = None

    @classmethod
    def of(cls, argument: str, word: str) -> "Source":
        """The source a word names: a path, or for `CONTAINERS` a path, a colon and a name.

        Example:
            >>> Source.of("x", "a.safetensors:layer.0").part
            'layer.0'
        """
        for kind in CONTAINERS:
            path, mark, part = word.partition(f"{kind}:")
            if mark:
                return cls(argument, Path(path + kind), part or None)
        return cls(argument, Path(word))

    def bad(self, en: str, zh: str) -> BadFile:
        """The error about this file."""
        where = clean(str(self.path))
        return BadFile(f"{self.argument}: {where}: {en}", f"{self.argument}：{where}：{zh}")


@dataclass(frozen=True, eq=False)
class Numbers:
    """What a file held: the numbers in float64, and its tokens if it had any."""

    values: Tensor
    tokens: tuple[str, ...] | None = None


def read_matrix(word: str, argument: str = "x", *, finite: bool = True) -> Numbers:
    """The matrix in a file, (rows, columns), at least one of each.

    Args:
        word: the file, see this module's table.
        argument: what to call it in an error.
        finite: whether infinities are refused; NaN always is.

    Raises:
        BadFile: if there is no such file, or it holds no such matrix; the message names file,
            row and column.
        MissingExtra: if the package that reads this type is not installed.
    """
    return read_array(word, argument, (2,), finite=finite)


def read_array(word: str, argument: str, ranks: tuple[int, ...], *, finite: bool = True) -> Numbers:
    """As `read_matrix`, for arrays with one of several numbers of axes."""
    source = Source.of(argument, word)
    kind = source.path.suffix.lower()
    reader = _READERS.get(kind)
    if reader is None:
        known = ", ".join(TYPES)
        raise source.bad(
            f"unknown file type {clean(kind) or 'without suffix'!r}; expected one of {known}",
            f"未知的文件类型 {clean(kind) or '（无后缀）'!r}；应为 {known} 之一",
        )
    check_file(source, MOST_BYTES)
    found = reader(source)
    _check_array(source, found, ranks, finite)
    return found


def read_tokens(word: str) -> tuple[str, ...]:
    """Tokens from the command line: ``我,爱,你``, or a .json list or .txt file of one a line.

    Raises:
        BadFile: if the file cannot be read, or holds something else than a list of texts.
        BadValue: if a token is not valid text.
    """
    source = Source.of("tokens", word)
    kind = source.path.suffix.lower()
    if kind not in (".json", ".txt"):
        return _valid(tuple(word.split(",")))
    check_file(source, MOST_BYTES)
    text = _decode(source)
    if kind == ".txt":
        return _valid(tuple(text.splitlines()))
    found = _parse(source, text)
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        raise source.bad(Text('expected a list of texts such as ["I", "see"], got something else'))
    return _valid(tuple(found))


def check_file(source: Source, most: int) -> None:
    """Refuse what is missing, is no file, or is too large.

    Raises:
        BadFile: in each of these cases.
    """
    try:
        size = source.path.stat().st_size
        usable = source.path.is_file()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such path"
        raise source.bad(
            Text("cannot be opened: {reason}; check the path", reason=reason)
        ) from error
    if not usable:
        raise source.bad(Text("expected a file, got a directory or device"))
    if size > most:
        raise source.bad(
            Text(
                "expected at most {most:,} bytes, got {size:,}; give a part of it",
                most=most,
                size=size,
            )
        )


def _decode(source: Source) -> str:
    try:
        return source.path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise source.bad(
            Text(
                "expected UTF-8 text, got byte 0x{object:02x} at offset {start}; save it as UTF-8",
                object=error.object[error.start],
                start=error.start,
            )
        ) from error
    except OSError as error:
        raise source.bad(Text("cannot be read: {strerror}", strerror=error.strerror)) from error


def _valid(tokens: tuple[str, ...]) -> tuple[str, ...]:
    for i, token in enumerate(tokens):
        if any("\ud800" <= character <= "\udfff" for character in token):
            raise BadValue(
                "tokens: number {i} is not valid text: {token!r}; give it as UTF-8",
                i=i,
                token=token,
            )
    return tokens


def _table(source: Source) -> Numbers:
    try:
        rows, tokens = from_text(_decode(source), tabs=source.path.suffix.lower() == ".tsv")
    except Ragged as error:
        raise source.bad(error.text.en, error.text.zh) from error
    return _numbers(source, rows, tokens)


def _json(source: Source) -> Numbers:
    found = _parse(source, _decode(source))
    tokens: tuple[str, ...] | None = None
    if isinstance(found, dict):
        given = found.get("tokens")
        if "x" not in found or not isinstance(given, list | None):
            raise source.bad(
                Text('expected {"x": [[…]], "tokens": […]}; the numbers stand under "x"')
            )
        if given is not None:
            tokens = _valid(tuple(str(token) for token in given))
        found = found["x"]
    try:
        rows = from_lists(found, booleans=source.argument == "mask")
    except Ragged as error:
        raise source.bad(error.text.en, error.text.zh) from error
    return _numbers(source, rows, tokens)


def _parse(source: Source, text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise source.bad(
            Text(
                "not valid JSON at line {lineno}, column {colno}: {msg}",
                lineno=error.lineno,
                colno=error.colno,
                msg=error.msg,
            )
        ) from error
    except (ValueError, RecursionError) as error:
        raise source.bad(
            Text("not usable JSON: a number is too long or lists are nested too deeply")
        ) from error


def _numbers(source: Source, rows: list[list[float]], tokens: tuple[str, ...] | None) -> Numbers:
    count = sum(map(len, rows))
    _check_count(source, count)
    return Numbers(torch.tensor(rows, dtype=torch.float64), tokens)


def _check_count(source: Source, count: int) -> None:
    if count > MOST_NUMBERS:
        raise source.bad(
            Text(
                "expected at most {most_numbers:,} numbers, got {count:,}; give a part of them",
                most_numbers=MOST_NUMBERS,
                count=count,
            )
        )


def _npy(source: Source) -> Numbers:
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtra.of("numpy", "explain") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 wrote; they are read
            array = np.lib.format.open_memmap(source.path, mode="r")
    except Exception as error:  # whatever a hostile header makes the parser raise is about the file
        raise source.bad(
            Text(
                "expected one .npy array of numbers, got a damaged file or Python objects, "
                "which are never unpickled; save it with numpy.save(file, "
                "array.astype('float64'))"
            )
        ) from error
    if array.dtype.kind not in "fiub":
        raise source.bad(
            Text(
                "expected real numbers, got dtype {array_dtype}; convert with .astype('float64')",
                array_dtype=clean(str(array.dtype)),
            )
        )
    _check_count(source, array.size)
    return Numbers(torch.from_numpy(np.array(array, dtype=np.float64, order="C")))


def _safetensors(source: Source) -> Numbers:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtra.of("safetensors", "explain") from error
    try:
        with safe_open(source.path, framework="pt") as file:
            name = _chosen(source, sorted(file.keys()))
            shape = file.get_slice(name).get_shape()
            _check_count(source, torch.Size(shape).numel())
            tensor = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise source.bad(
            Text("not a usable safetensors file: {error}", error=clean(str(error)))
        ) from error
    if tensor.is_complex():
        raise source.bad(
            Text("expected real numbers, got dtype {tensor_dtype}", tensor_dtype=tensor.dtype)
        )
    return Numbers(tensor.to(torch.float64))


def _chosen(source: Source, names: list[str]) -> str:
    if source.part is None and len(names) == 1:
        return names[0]
    if source.part not in names:
        some = ", ".join(clean(name) for name in names[:8]) + (", …" if len(names) > 8 else "")
        asked = "" if source.part is None else clean(source.part)
        raise source.bad(
            Text(
                "expected the name of one of its {num_names} tensors ({some}), got "
                "{asked!r}; write {path_name}:name",
                num_names=len(names),
                some=some,
                asked=asked,
                path_name=clean(source.path.name),
            )
        )
    return source.part


def _check_array(source: Source, found: Numbers, ranks: tuple[int, ...], finite: bool) -> None:
    values = found.values
    if values.dim() not in ranks or not values.numel():
        wanted = " or ".join(map(str, ranks))
        raise source.bad(
            Text(
                "expected {wanted} axes with at least one number, got shape {values_shape}",
                wanted=wanted,
                values_shape=tuple(values.shape),
            )
        )
    wrong = ~values.isfinite() if finite else values.isnan()
    if bool(wrong.any()):
        *outer, row, column = wrong.nonzero()[0].tolist()
        value, place = values[(*outer, row, column)].item(), f"row {row}, column {column}"
        raise source.bad(
            f"expected finite numbers, got {value} in {place} (counted from 0); replace it",
            f"应为有限的数，第 {row} 行第 {column} 列（从 0 数）为 {value}；请替换",
        )


_READERS: dict[str, Callable[[Source], Numbers]] = {
    ".csv": _table,
    ".tsv": _table,
    ".npy": _npy,
    ".json": _json,
    ".safetensors": _safetensors,
}
