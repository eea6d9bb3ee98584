"""Module paths of earlier versions, which still work and raise a DeprecationWarning."""

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

RENAMED = {
    "headwise.cli.ablate.export": "headwise.heads.ablation.experiment.ablation_report",
    "headwise.heads.circuits": "headwise.heads.analysis.circuits",
    "headwise.heads.corpus.saved": "headwise.heads.corpus.checkpoint",
    "headwise.heads.corpus.whole": "headwise.heads.corpus.pipeline",
    "headwise.heads.effect": "headwise.heads.ablation",
    "headwise.heads.export": "headwise.heads.inspection_export",
    "headwise.heads.metrics.induction": "headwise.heads.metrics.repetition",
    "headwise.heads.taxonomy": "headwise.heads.naming",
    "headwise.verify.budget": "headwise.verify.oracle.tolerance",
    "headwise.verify.loading": "headwise.verify.target",
    "headwise.verify.schema": "headwise.verify.report.formats",
}
"""Every old module path that README or docs mentioned, and the new path."""


class RenamedModules(MetaPathFinder, Loader):
    """A finder of the old paths, whose modules take their names from the new paths."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in RENAMED else None

    def exec_module(self, module: ModuleType) -> None:
        new = RENAMED[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}", DeprecationWarning, stacklevel=2)
        module.__dict__["__getattr__"] = partial(getattr, import_module(new))


def install() -> None:
    """Make the old paths importable."""
    if not any(isinstance(finder, RenamedModules) for finder in sys.meta_path):
        sys.meta_path.append(RenamedModules())
