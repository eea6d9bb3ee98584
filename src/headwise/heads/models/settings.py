"""A model's config.json as far as it is believed: what the model is, never what code runs it."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.heads.models.directory import CONFIG

_CHOOSES = re.compile(
    r"_?(attn|experts)_implementation(_internal)?"
    r"|auto_map|custom_pipelines|configuration_files|transformers_weights"
)
"""Keys by which transformers takes code from the hub or from a package, or reads another file.

An attention may be named "owner/repository": transformers gets that kernel and runs it.
"""


def believed(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The configuration without what chooses code or files, in its parts too.

    Args:
        config: as it was read.
        name: what the model was asked for by.

    Raises:
        BadFile: if the kind of model is missing, or the weights are quantised: unpacking them
            is the work of other packages' code, some of it got from the hub.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise BadFile(
            "model: cannot load {name}: {config}: expected the kind of model as "
            "model_type, got {kind}; save it with model.save_pretrained",
            name=clean(name),
            config=CONFIG,
            kind=clean(repr(kind))[:40],
        )
    if any(key == "quantization_config" and value for key, value in _entries(config)):
        raise BadFile(
            "model: cannot load {name}: {config}: its weights are quantised "
            "(quantization_config), and heads are measured in float32; give the model as "
            "it was before, or save it after model.dequantize()",
            name=clean(name),
            config=CONFIG,
        )
    kept: dict[str, Any] = _without(config)
    return kept


def configuration(settings: dict[str, Any], where: str) -> Any:
    """transformers' configuration of these settings, which are all that it sees of the file.

    Args:
        settings: what `believed` left.
        where: the directory or hub id that the model is of.
    """
    import transformers

    with tempfile.TemporaryDirectory(prefix="headwise-") as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(settings), encoding="utf-8")
        config: Any = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    config._name_or_path = where
    return config


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without(v) for k, v in value.items() if not _CHOOSES.fullmatch(k)}
    return [_without(each) for each in value] if isinstance(value, list) else value


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key and its value, however deep."""
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from _entries(each)
    if isinstance(value, dict):
        yield from value.items()
