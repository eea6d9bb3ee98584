"""How the time of `headwise check` grows with the length of a text, hostile texts above all.

``python -m benchmarks.reading`` prints one row for each text: the seconds at one length and at ten
times that length, and their ratio, which may be at most `ASKED`.
"""

import contextlib
import json
import time

from headwise.check import check
from headwise.errors import BadFile

SHORT, ASKED, TURNS = 800, 12.0, 3
ARTICLE = "One head. X = [[1.0, 2.0], [0.5, 1.5], [2.0, 0.5]]\n"
UNITS = (
    "√", "e^", "[1,", "x[0,", "A(B,", "- ", "> ", "[", "(", "softmax(", "| 1 ", "1. ", "\\frac{",
    "<b>", "# H\n", "**b**\n", "mask causal scaled. ", "print(x)\n", "=", "a = ", "_", "^",
)  # fmt: skip


def seconds(text: str) -> float:
    """The least time of some turns; a text that is refused counts as well."""
    best = float("inf")
    for _ in range(TURNS):
        start = time.perf_counter()
        with contextlib.suppress(BadFile):
            check(text)
        best = min(best, time.perf_counter() - start)
    return best


def row(unit: str) -> dict[str, object]:
    """The times of one hostile text at two lengths."""
    short, long = (seconds(ARTICLE + unit * count) for count in (SHORT, 10 * SHORT))
    return {"case": unit, "seconds": [short, long], "asked": ASKED, "measured": long / short}


def ten_megabytes() -> dict[str, object]:
    """The longest time that a text of 10 MB takes to end in a verdict or one clear line."""
    longest = max(seconds(unit * (10_000_000 // len(unit))) for unit in ("a", "[1, 2] ", "1.5 "))
    return {"case": "10 MB", "seconds": longest, "asked": 20.0, "measured": longest}


if __name__ == "__main__":
    for unit in UNITS:
        print(json.dumps(row(unit), ensure_ascii=False), flush=True)
    print(json.dumps(ten_megabytes()))
