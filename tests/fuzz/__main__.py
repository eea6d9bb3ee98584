"""``python -m tests.fuzz CASES [FIRST]``: run random cases and print the cases that differ."""

import sys

import torch

from tests.fuzz.check import differences

if __name__ == "__main__":
    torch.set_num_threads(1)
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    failed = 0
    for seed in range(first, first + count):
        for line in differences(seed):
            failed += 1
            print(line, flush=True)
    print(f"{count} cases, {failed} differences")
    sys.exit(bool(failed))
