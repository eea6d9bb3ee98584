"""Redraw the pictures of the decision records: ``make docs``."""

import re
from pathlib import Path

from docs.pictures import PICTURES

RECORDS = Path(__file__).parent / "decisions"
BLOCK = re.compile(r"```text picture\n.*?```", re.DOTALL)


def drawn(record: str, picture: str) -> str:
    """Replace the picture in the text of a record."""
    return BLOCK.sub(lambda _: f"```text picture\n{picture}\n```", record)


def main() -> None:
    """Write the records whose pictures have changed, and print their names."""
    for stem, draw in PICTURES:
        path = RECORDS / f"{stem}.md"
        before = path.read_text(encoding="utf-8")
        after = drawn(before, draw())
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"docs: drew {path.name}")  # noqa: T201
    print(f"docs: {len(PICTURES)} pictures are up to date")  # noqa: T201


if __name__ == "__main__":
    main()
