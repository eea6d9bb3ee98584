"""What headwise runs on: versions, engines, extras, models and threads, for reports of bugs.

Nothing of it identifies a person: paths in the home folder begin with ``~``.
"""

import os
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import torch

from headwise import __version__
from headwise.call import Call
from headwise.document import Document, Heading, Notice, Paragraph, Table
from headwise.engines import ENGINES
from headwise.lang import Text, joined, same
from headwise.verify.report import both
from headwise.verify.submissions import available_cpus

REQUIREMENT = re.compile(r"([\w.-]+)\s*([^;]*?)\s*(?:;\s*extra\s*==\s*['\"]([\w-]+)['\"])?")
"""One line of a package's requirements: the package, its versions, and the extra that needs it."""

NOT_FOR_USERS = frozenset({"all", "bench", "dev"})  # extras

COMPILERS = ("c++", "g++", "clang++", "cl")


@dataclass(frozen=True)
class Requirement:
    """A package that headwise or one of its extras needs.

    Attributes:
        package: its name.
        needs: the versions that are needed, such as ">=2.7"; may be empty.
        extra: the extra; empty for headwise itself.
        installed: the version that is installed, or None.
    """

    package: str
    needs: str
    extra: str
    installed: str | None


def requirements() -> list[Requirement]:
    """The packages that headwise and its extras need; empty where it runs from its source.

    Example:
        >>> all(r.installed for r in requirements() if r.package == "torch")
        True
    """
    try:
        lines = requires("headwise") or []
    except PackageNotFoundError:
        return []
    found = [match.groups(default="") for line in lines if (match := REQUIREMENT.fullmatch(line))]
    return [
        Requirement(package, needs, extra, _installed(package))
        for package, needs, extra in found
        if extra not in NOT_FOR_USERS and package != "headwise"
    ]


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def system() -> dict[str, str | int | None]:
    """The versions of everything below headwise, the device and the threads."""
    cuda = torch.cuda.is_available()
    compilers = (name for name in COMPILERS if shutil.which(name))
    return {
        "headwise": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "cpus": available_cpus(),
        "cpus_of_machine": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "torch_interop_threads": torch.get_num_interop_threads(),
        "compiler": next(compilers, None),
        "stdout_encoding": getattr(sys.stdout, "encoding", None),
    }


def engines() -> dict[str, list[Text]]:
    """For each engine, by its name, why it cannot run a small call; empty where it can."""
    x = torch.zeros(1, 2, 16, 8)
    call = Call.of(x, x, x)
    return {engine.NAME: list(engine.why_not(call)) for engine in ENGINES}


def models() -> dict[str, str | None]:
    """For each model that can be fetched, by its name, the folder it is in; None if it is not."""
    from headwise.heads.models import MODELS, is_cached, model_folder

    here = {model.name: model_folder(model) for model in MODELS if is_cached(model)}
    return {m.name: _shortened(here[m.name]) if m.name in here else None for m in MODELS}


def _shortened(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else str(path)


def data() -> dict[str, Any]:
    """Everything as data for JSON."""
    return {
        "schema": "headwise.doctor/1",
        "system": system(),
        "packages": [vars(requirement) for requirement in requirements()],
        "engines": {name: [both(why) for why in whys] for name, whys in engines().items()},
        "models": models(),
    }


def document() -> Document:
    """Everything as a document, to be put into a report of a bug."""
    needed = requirements()
    missing = dict.fromkeys(r.extra for r in needed if r.extra and not r.installed)
    lacking = [r.package for r in needed if not r.extra and not r.installed]
    summary = Text("headwise {version} is complete", version=__version__)
    if missing:
        summary = Text("not installed: {extras}", extras=", ".join(missing))
    if lacking:
        summary = Text(
            "headwise needs packages that are missing: {names}", names=", ".join(lacking)
        )
    install = f"pip install 'headwise[{','.join(missing)}]'"
    advice = [Paragraph(Text("To install them: {command}", command=install))] if missing else []
    blocks = (
        Notice(not lacking, summary),
        *advice,
        Heading(Text("System")),
        _table((Text("property"), Text("value")), [(k, _word(v)) for k, v in system().items()]),
        Heading(Text("Packages")),
        _packages(needed),
        Heading(Text("Engines")),
        Table(
            (Text("engine"), Text("on a small call")), [_row(*item) for item in engines().items()]
        ),
        Heading(Text("Models")),
        _table((Text("model"), Text("folder")), [(k, _word(v)) for k, v in models().items()]),
    )
    return Document(same("headwise doctor"), blocks)


def _packages(needed: list[Requirement]) -> Table | Paragraph:
    if not needed:
        return Paragraph(Text("headwise is not installed as a package; it runs from its source"))
    rows = [(r.extra or "-", r.package, r.needs or "-", _word(r.installed)) for r in needed]
    return _table((Text("extra"), Text("package"), Text("needs"), Text("installed")), rows)


def _table(head: tuple[Text, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(head, [tuple(map(same, row)) for row in rows])


def _row(name: str, whys: list[Text]) -> tuple[Text, Text]:
    return same(name), joined(same("; "), whys) if whys else Text("runs")


def _word(value: str | int | None) -> str:
    return "-" if value is None else str(value)
