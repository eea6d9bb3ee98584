"""The command doctor: what headwise runs on, without anything of the person who runs it."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

import headwise
from headwise import environment
from headwise.cli import main
from headwise.engines import ENGINES
from headwise.environment import Requirement
from headwise.heads.models import MODELS

LINES = [
    "torch>=2.7",
    "click>=8.1",
    'numpy>=1.26; extra == "explain"',
    "no-such-package<6,>=5; extra == 'html'",
    "headwise[explain]; extra == 'all'",
    'pytest>=8.3; extra == "dev"',
]


@pytest.fixture
def required(monkeypatch) -> None:
    monkeypatch.setattr(environment, "requires", lambda _name: LINES)


def test_the_requirements_of_headwise_and_its_extras(required) -> None:
    found = environment.requirements()
    assert [(r.package, r.needs, r.extra) for r in found] == [
        ("torch", ">=2.7", ""),
        ("click", ">=8.1", ""),
        ("numpy", ">=1.26", "explain"),
        ("no-such-package", "<6,>=5", "html"),
    ]
    assert found[0].installed == torch.__version__
    assert found[3].installed is None


def test_json_has_every_engine_and_model(capsys) -> None:
    assert main(["doctor", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "headwise.doctor/1"
    assert found["system"]["headwise"] == headwise.__version__
    assert found["system"]["torch"] == torch.__version__
    assert found["system"]["torch_threads"] == torch.get_num_threads()
    assert list(found["engines"]) == [engine.NAME for engine in ENGINES]
    assert found["engines"]["eager"] == []
    assert set(found["engines"]["lsh"][0]) == {"en", "zh"}
    assert list(found["models"]) == [model.name for model in MODELS]


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        ("en", ("not installed: html", "To install them: pip install 'headwise[html]'")),
        ("zh", ("未安装：html", "安装方法：pip install 'headwise[html]'")),
    ],
)
def test_a_missing_extra_says_how_to_install_it(required, capsys, lang: str, words) -> None:
    assert main(["--lang", lang, "doctor"]) == 0
    said = capsys.readouterr().out
    for word in words:
        assert word in said


def test_a_missing_package_of_headwise_itself_is_named(monkeypatch) -> None:
    lacking = [Requirement("rich", ">=13.7", "", None)]
    monkeypatch.setattr(environment, "requirements", lambda: lacking)
    notice = environment.document().blocks[0]
    assert notice.good is False
    assert notice.text.en == "headwise needs packages that are missing: rich"


def test_from_its_source_it_says_so(monkeypatch, capsys) -> None:
    def none(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "requires", none)
    assert main(["--lang", "en", "doctor", "--format", "markdown"]) == 0
    assert "it runs from its source" in capsys.readouterr().out


def test_paths_do_not_name_the_person(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("headwise.heads.models.is_cached", lambda _model: True)
    monkeypatch.setattr("headwise.heads.models.model_folder", lambda m: tmp_path / "kept" / m.name)
    assert set(environment.models().values()) == {f"~/kept/{model.name}" for model in MODELS}
