"""Every fault of `tools.faults` has one place in the source and one row in the documentation."""

import re

import pytest

from tools.faults import FAULTS, PAGE, ROOT, Fault, files_of


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_the_place_of_a_fault_occurs_once(fault: Fault) -> None:
    texts = [file.read_text(encoding="utf-8") for file in files_of(ROOT, fault)]
    assert sum(len(re.findall(fault.place, text)) for text in texts) == 1


def test_the_page_has_a_row_for_each_fault() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (\S+) \| (.+) \| `.+` \|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert [(int(n), room, what) for n, room, what in rows] == [
        (n, fault.room, fault.what) for n, fault in enumerate(FAULTS, 1)
    ]
