"""The module paths of earlier versions still work."""

import sys
from importlib import import_module

import pytest

from headwise.renamed import RENAMED, RenamedModules

NAMES = {
    "headwise.cli.ablate.export": ["faults"],
    "headwise.heads.circuits": ["Circuits"],
    "headwise.heads.corpus.saved": ["open_run"],
    "headwise.heads.corpus.whole": ["Options", "measure_corpus"],
    "headwise.heads.effect": ["ablate", "against_random", "curve", "next_token_loss", "repeated"],
    "headwise.heads.export": ["faults", "schema"],
    "headwise.heads.metrics.induction": ["INDUCTION"],
    "headwise.heads.taxonomy": ["names_of_heads"],
    "headwise.verify.budget": ["accept", "judge"],
    "headwise.verify.loading": ["load"],
    "headwise.verify.schema": ["faults", "schema"],
}
"""What was documented in each."""


def test_every_old_path_is_tested():
    assert NAMES.keys() == RENAMED.keys()


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_path_warns_and_gives_the_names_of_the_new_one(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {RENAMED[old]}"):
        module = import_module(old)
    new = import_module(RENAMED[old])
    assert all(getattr(module, name) is getattr(new, name) for name in NAMES[old])


def test_the_warning_is_of_the_line_that_imports(monkeypatch):
    monkeypatch.delitem(sys.modules, "headwise.heads.effect", raising=False)
    with pytest.warns(DeprecationWarning, match="now headwise.heads.ablation") as record:
        from headwise.heads.effect import curve  # noqa: F401
    assert record[0].filename == __file__


def test_other_modules_are_left_to_other_finders():
    assert RenamedModules().find_spec("headwise.heads", None) is None
