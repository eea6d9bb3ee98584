"""Import the numerical packages with beartype, which checks shapes at run time in all tests."""

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

from tools import messages

CHECKED = ["headwise.reference", "headwise.engines", "headwise.masks.mask", "headwise.positions"]
"""Rooms whose annotations hold at run time. Doors that validate their own arguments are left out:
there the test is that *their* message comes."""

install_import_hook(CHECKED, "beartype.beartype")
torch.manual_seed(0)  # what is drawn while tests are collected is the same in every worker
torch.set_num_threads(1)  # small sizes; the workers share the cores

settings.register_profile("headwise", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("headwise")


def pytest_configure(config: pytest.Config) -> None:
    """Compile the catalogues once where they are newer than the compiled file."""
    if not hasattr(config, "workerinput") and messages.is_stale():
        messages.compile_catalogue()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random numbers."""
    torch.manual_seed(0)
