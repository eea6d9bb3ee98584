"""Write reactions.jsonl from reactions.txt: the reactions without atom numbers, and gold pairs.

A pair is (token of an atom of the product, token of the same atom in the reactants). Tokens are
those of rxnmapper's tokenizer, counted from [CLS].
Run: python -m tests.data.alignment.map_reactions
"""

import json
import re
from pathlib import Path

from headwise.heads.models.gguf import SYMBOL

HERE = Path(__file__).parent
NUMBERED = re.compile(rf"({SYMBOL})(?:\{{(\d+)\}})?")


def mapped(line: str) -> dict[str, object]:
    """One reaction as a line of the corpus."""
    symbols = [(symbol, number) for symbol, number in NUMBERED.findall(line)]
    arrow = next(n for n, (symbol, _) in enumerate(symbols) if symbol == ">>")
    places: dict[bool, dict[str, list[int]]] = {False: {}, True: {}}
    for n, (_, number) in enumerate(symbols):
        if number:
            places[n > arrow].setdefault(number, []).append(n + 1)  # [CLS] is token 0
    if set(places[False]) != set(places[True]):
        raise ValueError(f"{line}: the numbers on both sides differ")
    for number, found in places[True].items():
        if len(found) > len(places[False][number]):
            raise ValueError(f"{line}: {number} comes from nowhere")
    pairs = [
        [q, k] for number, qs in places[True].items() for q in qs for k in places[False][number]
    ]
    return {"text": "".join(symbol for symbol, _ in symbols), "alignment": sorted(pairs)}


if __name__ == "__main__":
    lines = (HERE / "reactions.txt").read_text(encoding="utf-8").splitlines()
    found = [json.dumps(mapped(line)) for line in lines if line and not line.startswith("#")]
    (HERE / "reactions.jsonl").write_text("\n".join(found) + "\n", encoding="utf-8")
