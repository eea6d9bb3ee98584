"""Shapes are checked at run time here: the rooms of the arithmetic load through beartype."""

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

from tools.messages import CATALOGUES, COMPILED, compile_catalogue

CHECKED = ["headwise.reference", "headwise.engines", "headwise.masks.base", "headwise.positions"]
"""Rooms whose annotations hold at run time. Doors that validate their own arguments are left out:
there the test is that *their* message comes."""

sources = CATALOGUES.glob("*.po")
if not COMPILED.exists() or COMPILED.stat().st_mtime < max(po.stat().st_mtime for po in sources):
    compile_catalogue()

install_import_hook(CHECKED, "beartype.beartype")
torch.manual_seed(0)  # what is drawn while tests are collected is the same in every worker
torch.set_num_threads(1)  # small sizes; the workers share the cores

settings.register_profile("headwise", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("headwise")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random numbers."""
    torch.manual_seed(0)
