"""Draw the pictures of the decision records anew: ``make docs``."""

import re
from pathlib import Path

from docs.pictures import PICTURES

RECORDS = Path(__file__).parent / "decisions"
BLOCK = re.compile(r"```text picture\n.*?```", re.DOTALL)


def drawn(record: str, picture: str) -> str:
    """A record's text with its picture replaced."""
    return BLOCK.sub(lambda _: f"```text picture\n{picture}\n```", record)


def main() -> None:
    """Write every record whose picture has changed, and say which."""
    for stem, draw in PICTURES:
        path = RECORDS / f"{stem}.md"
        before = path.read_text(encoding="utf-8")
        after = drawn(before, draw())
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"docs: drew {path.name}")  # noqa: T201
    print(f"docs: {len(PICTURES)} pictures are those of today's code")  # noqa: T201


if __name__ == "__main__":
    main()
