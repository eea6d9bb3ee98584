"""Read the named arrays of a weights file, without unpickling.

| file extension | contents |
|---|---|
| .safetensors, .pt, .pth | a ``state_dict()`` |
| .npz | arrays saved with `numpy.savez` |
| .json | ``{"W_Q": [[…], …], "b_Q": […], …}``, nested or not |
| .csv, .tsv | for each array a line with its name, then its rows |
| of an article, such as .md or .ipynb | the arrays printed in the article |
"""

import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.document.reading import from_bytes
from headwise.document.reading.article_file import SUFFIXES as ARTICLES
from headwise.document.text_format import clean
from headwise.errors import BadFile, MissingExtra
from headwise.explain.array_files import (
    InputFile,
    check_file,
    content,
    decoded,
    open_safetensors,
    parse_json,
)
from headwise.explain.article_arrays import arrays
from headwise.explain.number_tables import from_lists, named_blocks
from headwise.lang import Text

MOST_BYTES = 4 * 2**30  # the maximum file size in bytes, before and after decompression
MOST_NUMBERS = 2**26  # the maximum number of elements of one array

TYPES = (".safetensors", ".pt", ".pth", ".npz", ".json", ".csv", ".tsv", *ARTICLES)


@dataclass(frozen=True)
class NamedArrays:
    """The names of the arrays in a file, and a function that loads one array."""

    names: frozenset[str]
    load: Callable[[str], Tensor]

    def get(self, name: str, axes: int) -> Tensor:
        """Load a finite array with this number of axes in float64; raise `BadFile` otherwise."""
        tensor = self.load(name)
        check_size(name, tensor.numel())
        readable = tensor.layout == torch.strided and tensor.is_floating_point()
        whole = readable and not tensor.is_meta
        if axes == 1 and whole and tensor.dim() == 2 and 1 in tensor.shape:
            tensor = tensor.flatten()  # a bias stored as a matrix with one row or column
        if tensor.dim() != axes or not whole or not bool(tensor.isfinite().all()):
            raise BadFile(
                "{name}: expected a finite floating point array with {axes} axes, got {dtype} of "
                "shape {shape}",
                name=clean(name),
                axes=axes,
                dtype=tensor.dtype,
                shape=tuple(tensor.shape),
            )
        return tensor.to(torch.float64)


@contextmanager
def open_arrays(file: InputFile) -> Iterator[NamedArrays]:
    """Open a file with one of the extensions in `TYPES`, and yield its named arrays.

    Raises:
        BadFile: if the file cannot be used.
        MissingExtra: if the package that reads this type is not installed.
    """
    if file.suffix not in TYPES:
        raise file.unknown_type(Text("one of {types}", types=", ".join(TYPES)))
    check_file(file, MOST_BYTES)
    if file.suffix == ".safetensors":
        with open_safetensors(file) as archive:

            def load(name: str) -> Tensor:
                check_size(name, torch.Size(archive.get_slice(name).get_shape()).numel())
                tensor: Tensor = archive.get_tensor(name)
                return tensor

            yield NamedArrays(frozenset(archive.keys()), load)
    else:
        readers = {".pt": _torch, ".pth": _torch, ".npz": _npz, ".json": _json}
        readers |= dict.fromkeys((".csv", ".tsv"), _table)
        tensors = readers.get(file.suffix, _article)(file)
        yield NamedArrays(frozenset(tensors), tensors.__getitem__)


def check_size(name: str, count: int) -> None:
    """Raise `BadFile` for an array that is empty or larger than `MOST_NUMBERS`."""
    if not 0 < count <= MOST_NUMBERS:
        raise BadFile(
            "{name}: expected 1 to {most:,} numbers, got {count:,}",
            name=clean(name),
            most=MOST_NUMBERS,
            count=count,
        )


def _torch(file: InputFile) -> dict[str, Tensor]:
    if zipfile.is_zipfile(file.path):
        _check_archive(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unexpected pickles raise an error below
            loaded = torch.load(file.path, map_location="cpu", weights_only=True)
    except Exception as error:  # any error of the decoder on a hostile file means a bad file
        raise BadFile(
            "the file is damaged or contains objects other than tensors, which are never "
            "unpickled; use torch.save(module.state_dict(), file), or a .safetensors file"
        ) from error
    state = loaded.get("state_dict", loaded) if isinstance(loaded, Mapping) else None
    if not isinstance(state, Mapping):
        raise BadFile(
            "expected a state_dict, got {got}; save module.state_dict()", got=type(loaded).__name__
        )
    return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}


def _check_archive(file: InputFile) -> None:
    """Raise `BadFile` if a compressed file exceeds `MOST_BYTES` when decompressed."""
    try:
        with closing(zipfile.ZipFile(file.path)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except Exception as error:  # any error of the parser on a hostile archive means a bad file
        raise BadFile("the archive is damaged") from error
    if size > MOST_BYTES:
        raise BadFile(
            "expected at most {most:,} bytes when decompressed, got {size:,}",
            most=MOST_BYTES,
            size=size,
        )


def _npz(file: InputFile) -> dict[str, Tensor]:
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtra.of("numpy", "explain") from error
    _check_archive(file)
    try:
        with np.load(file.path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except Exception as error:  # any error of the parser on a hostile header means a bad file
        raise BadFile(
            "expected numeric arrays, got a damaged file or Python objects, which are never "
            "unpickled; save arrays with numpy.savez(file, W_Q=…, W_K=…, W_V=…, W_O=…)"
        ) from error
    numeric = {name: array for name, array in found.items() if array.dtype.kind in "fiub"}
    return {name: torch.from_numpy(array.astype("float64")) for name, array in numeric.items()}


def _json(file: InputFile) -> dict[str, Tensor]:
    parsed = parse_json(decoded(file))
    if not isinstance(parsed, dict):
        raise BadFile('expected {"W_Q": [[…]], "W_K": [[…]], …}, got something else')
    return dict(_nested(parsed, ""))


def _nested(content: dict[str, object], prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the arrays of a nested dictionary, with names joined by dots."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _nested(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value:
            flat = not isinstance(value[0], list)
            rows = torch.tensor(from_lists([value] if flat else value), dtype=torch.float64)
            yield prefix + name, rows[0] if flat else rows


def _table(file: InputFile) -> dict[str, Tensor]:
    blocks = named_blocks(decoded(file), tabs=file.suffix == ".tsv")
    return {name: torch.tensor(rows, dtype=torch.float64) for name, rows in blocks.items()}


def _article(file: InputFile) -> dict[str, Tensor]:
    """Return the arrays of an article; the first of several arrays with the same name."""
    found: dict[str, Tensor] = {}
    for array in arrays(from_bytes(content(file), file.suffix).text):
        found.setdefault(array.name, torch.tensor(array.table.rows, dtype=torch.float64))
    return found
