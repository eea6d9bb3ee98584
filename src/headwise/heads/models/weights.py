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

MOST_BYTES = 2**26
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
    found = sorted(each.name for each in folder.iterdir() if each.suffix in PICKLES)
    if found:
        raise pickled(name, found[0])


def check_index(path: Path, name: str) -> tuple[str, ...]:
    """The files that an index of weights names: safetensors beside it.

    Raises:
        BadFile: if it names anything else, or cannot be read.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        files = set(json.loads(path.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = clean(f"{type(error).__name__}: {error}")[:100]
        raise BadFile(
            f"model: cannot load {clean(name)}: {INDEX} is damaged ({reason}); save the model "
            "again with model.save_pretrained",
            f"model：无法加载 {clean(name)}：{INDEX} 已损坏（{reason}）；"
            "请用 model.save_pretrained 重新保存",
        ) from error
    for file in sorted(files, key=str):
        if not isinstance(file, str) or not _beside(file):
            shown = clean(repr(file))[:60]
            raise BadFile(
                f"model: cannot load {clean(name)}: {INDEX}: expected the names of .safetensors "
                f"files beside it, got {shown}; save the model again with model.save_pretrained",
                f"model：无法加载 {clean(name)}：{INDEX} 应列出同一文件夹中的 .safetensors 文件，"
                f"收到 {shown}；请用 model.save_pretrained 重新保存",
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
            f"model: '{clean(name)}' has no {WEIGHTS[0]} that can be got from the hub, and weights "
            "that come as a pickle are never opened; give a directory saved with "
            "model.save_pretrained, or another model",
            f"model：无法从 hub 获取 '{clean(name)}' 的 {WEIGHTS[0]}，而 pickle 形式的权重"
            "绝不打开；请给出用 model.save_pretrained 保存的文件夹，或其他模型",
        )
    for file in check_index(Path(index), name):
        got(file)


def _beside(file: str) -> bool:
    return file.endswith(".safetensors") and not any(sign in file for sign in "/\\\0:")


def pickled(name: str, file: str) -> BadFile:
    """The error for weights that come as a pickle."""
    return BadFile(
        f"model: the weights of {clean(name)} are a pickle ({clean(file)}), which can hold "
        "programs and is never opened; save them as model.safetensors: load the model where you "
        "trust it, then model.save_pretrained",
        f"model：{clean(name)} 的权重是 pickle（{clean(file)}），其中可能含有程序，绝不打开；"
        "请保存为 model.safetensors：在可信处加载模型，再用 model.save_pretrained",
    )


def adapter(name: str) -> BadFile:
    """The error for an adapter, which is a change to another model."""
    return BadFile(
        f"model: {clean(name)} is an adapter to another model ({ADAPTER}); put them together "
        "with model.merge_and_unload(), then model.save_pretrained",
        f"model：{clean(name)} 是另一模型的适配器（{ADAPTER}）；请用 model.merge_and_unload() "
        "合并，再用 model.save_pretrained 保存",
    )


def check_whole(name: str, file: str, report: dict[str, Any]) -> None:
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
                f"model: {clean(name)}: {clean(key)} holds {wrong} weights that are NaN or "
                "infinite, so what it computes means nothing; give weights from before the "
                "training or the conversion failed",
                f"model：{clean(name)} 的 {clean(key)} 有 {wrong} 个权重为 NaN 或无穷，"
                "其计算结果没有意义；请给出训练或转换出错之前的权重",
            )
