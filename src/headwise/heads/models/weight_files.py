"""Which files of weights are read, and what is said of weights that cannot be used."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.document.plain import clean
from headwise.errors import BadFile

INDEX = "model.safetensors.index.json"
WEIGHTS = ("model.safetensors", INDEX)

ADAPTER = "adapter_config.json"
"""It names another model, which would be got from the hub."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

MOST_WEIGHT_INDEX_BYTES = 2**26
"""The largest index that is read: a line for each tensor."""


def check_files(folder: Path, name: str) -> None:
    """Refuse weights that would be unpickled, an adapter, and files elsewhere.

    Raises:
        BadFile: if the folder has pickled weights alone, is an adapter to another model, or its
            index names anything but safetensors beside it.
    """
    if (folder / ADAPTER).is_file():
        raise adapter(name)
    if (folder / INDEX).is_file():
        check_index(folder / INDEX, name)
    if any((folder / file).is_file() for file in WEIGHTS):
        return
    found = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
    if found:
        raise pickled(name, found[0])


def check_index(path: Path, name: str) -> tuple[str, ...]:
    """The files that an index of weights names: safetensors beside it.

    Raises:
        BadFile: if it names anything else, or cannot be read.
    """
    try:
        if path.stat().st_size > MOST_WEIGHT_INDEX_BYTES:
            raise ValueError(f"more than {MOST_WEIGHT_INDEX_BYTES:,} bytes")
        files = set(json.loads(path.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = clean(f"{type(error).__name__}: {error}")[:100]
        raise BadFile(
            "model: cannot load {name}: {index} is damaged ({reason}); save the model "
            "again with model.save_pretrained",
            name=clean(name),
            index=INDEX,
            reason=reason,
        ) from error
    for file in sorted(files, key=str):
        if not isinstance(file, str) or not _beside(file):
            shown = clean(repr(file))[:60]
            raise BadFile(
                "model: cannot load {name}: {index}: expected the names of .safetensors "
                "files beside it, got {shown}; save the model again with "
                "model.save_pretrained",
                name=clean(name),
                index=INDEX,
                shown=shown,
            )
    return tuple(sorted(files))


def fetch_weights(where: str, name: str, *, local: bool) -> None:
    """Get a model's weights from the hub into its cache, where transformers then finds them.

    Args:
        where: the hub id.
        name: what the model was asked for by.
        local: look only at what the hub once gave.

    Raises:
        BadFile: if it has no safetensors, is an adapter, or its index names other files.
    """
    from transformers.utils.hub import cached_file

    def got(file: str) -> str | None:
        path: str | None = cached_file(
            where, file, local_files_only=local, _raise_exceptions_for_missing_entries=False
        )
        return path

    if got(ADAPTER):
        raise adapter(name)
    if got(WEIGHTS[0]):
        return
    index = got(INDEX)
    if index is None:
        raise BadFile(
            "model: '{name}' has no {file} that can be got from the hub, and "
            "weights that come as a pickle are never opened; give a directory saved with "
            "model.save_pretrained, or another model",
            name=clean(name),
            file=WEIGHTS[0],
        )
    for file in check_index(Path(index), name):
        got(file)


def _beside(file: str) -> bool:
    return file.endswith(".safetensors") and not any(sign in file for sign in "/\\\0:")


def pickled(name: str, file: str) -> BadFile:
    """The error for weights that come as a pickle."""
    return BadFile(
        "model: the weights of {name} are a pickle ({file}), which can hold programs "
        "and is never opened; save them as model.safetensors: load the model where you "
        "trust it, then model.save_pretrained",
        name=clean(name),
        file=clean(file),
    )


def adapter(name: str) -> BadFile:
    """The error for an adapter, which is a change to another model."""
    return BadFile(
        "model: {name} is an adapter to another model ({adapter}); put them together "
        "with model.merge_and_unload(), then model.save_pretrained",
        name=clean(name),
        adapter=ADAPTER,
    )


def check_complete(name: str, file: str, report: dict[str, Any]) -> None:
    """Weights that are missing or of another size would be random: refused, save for the pooler.

    Args:
        name: what the model was asked for by.
        file: where the weights are.
        report: transformers' account of loading.

    Raises:
        BadFile: if there are any.
    """
    for key, got, wanted in sorted(report.get("mismatched_keys", ())):
        raise BadFile(
            "model: cannot load {name}: {file} does not fit its config.json: {key} has "
            "shape {got}, config.json asks for {wanted}; save both with "
            "model.save_pretrained",
            name=clean(name),
            file=file,
            key=clean(str(key)),
            got=tuple(got),
            wanted=tuple(wanted),
        )
    missing = sorted(key for key in report.get("missing_keys", ()) if "pooler" not in key)
    if missing:
        shown = ", ".join(clean(key) for key in missing[:3])
        raise BadFile(
            "model: {name} lacks {num_missing} weights ({shown}), which would be random; "
            "save the whole model with model.save_pretrained",
            name=clean(name),
            num_missing=len(missing),
            shown=shown,
        )


def check_finite(name: str, model: nn.Module) -> None:
    """Refuse weights that are no numbers.

    Raises:
        BadFile: if one is NaN or infinite.
    """
    for key, weight in model.named_parameters():
        if not weight.is_floating_point() or torch.isfinite(weight.detach().sum()):
            continue
        wrong = int((~torch.isfinite(weight.detach())).sum())  # a sum can be too large by itself
        if wrong:
            raise BadFile(
                "model: {name}: {key} holds {wrong} weights that are NaN or infinite, so "
                "what it computes means nothing; give weights from before the training "
                "or the conversion failed",
                name=clean(name),
                key=clean(key),
                wrong=wrong,
            )
