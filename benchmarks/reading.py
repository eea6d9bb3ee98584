"""How the time of `headwise check` grows with the length of a text, hostile texts above all.

``python -m benchmarks.reading`` prints one row for each text: the seconds at one length and at ten
times that length, and their ratio, which may be at most `ASKED`.
"""

import contextlib
import gc
import json
import time

from headwise.check import check
from headwise.check.checker import MOST_CHARACTERS
from headwise.errors import BadFile

SHORT, ASKED, TURNS = 2_500, 12.0, 2
ARTICLE = "One head. X = [[1.0, 2.0], [0.5, 1.5], [2.0, 0.5]]\n"
UNITS = (
    "√", "e^", "[1,", "x[0,", "A(B,", "- ", "> ", "[", "(", "softmax(", "| 1 ", "1. ", "\\frac{",
    "<b>", "# H\n", "**b**\n", "mask causal scaled. ", "print(x)\n", "=", "a = ", "_", "^",
)  # fmt: skip


def seconds(text: str) -> float:
    """The least processor time of some turns; a text that is refused counts as well."""
    best = float("inf")
    for _ in range(TURNS):
        start = time.process_time()
        with contextlib.suppress(BadFile):
            check(text)
        best = min(best, time.process_time() - start)
    return best


def row(unit: str) -> dict[str, object]:
    """The times of one hostile text at two lengths."""
    short, long = (seconds(ARTICLE + unit * count) for count in (SHORT, 10 * SHORT))
    return {"case": unit, "seconds": [short, long], "asked": ASKED, "measured": long / short}


FULL = (
    *UNITS,
    "a",
    "9",
    "Scores: S_{01} = 1.5 + 2.5 = 4.0\n",
    "X = [[1, 2], [3, 4]]\n",
    "A1 = [1 2\n",
)


def longest() -> dict[str, object]:
    """The longest time until a text of 10 MB, or of the most characters read, ends somehow."""
    sizes = (10_000_000, MOST_CHARACTERS - len(ARTICLE))
    times = {
        unit: max(seconds(ARTICLE + unit * (size // len(unit))) for size in sizes) for unit in FULL
    }
    worst = max(times, key=lambda unit: times[unit])
    return {"case": f"longest: {worst}", "seconds": times[worst], "asked": 20.0}


if __name__ == "__main__":
    gc.freeze()  # collections then walk what the reading makes, not what torch has loaded
    for unit in UNITS:
        print(json.dumps(row(unit), ensure_ascii=False), flush=True)
    print(json.dumps(longest()))
