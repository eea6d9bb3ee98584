"""A script that runs a corpus repeatedly and kills the run at different moments.

    python killed.py MODEL CORPUS FOLDER

Prints JSON: for each moment, whether the child process was killed, and whether the resumed run
wrote exactly the files of an uninterrupted run.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from headwise.heads.corpus.measurement import Measurer
from headwise.heads.corpus.pipeline import Options, measure_corpus
from headwise.heads.corpus.readers import look_through
from headwise.heads.models.load import Loaded, load


def in_a_child(work: Callable[[], object]) -> int:
    """What ended a child that did some work: 0, or the number of a signal."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killing(owner: type, name: str, at: int, *, after: bool) -> None:
    """Die before, or after, the call of that number."""
    real, calls = getattr(owner, name), iter(range(1 << 30))

    def replaced(*given: object) -> object:
        now = next(calls) == at
        if now and not after:
            die()
        result = real(*given)
        if now:
            die()
        return result

    setattr(owner, name, replaced)


def run(loaded: Loaded, corpus: Path, folder: Path) -> None:
    measure_corpus(loaded, corpus, Options(folder, every=0))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def moments(documents: int) -> list[tuple[type, str, int, bool]]:
    """The calls to die at: whose, which, of what number, and whether before it or after it."""
    return [
        *((Measurer, "measure", at, False) for at in range(documents)),
        *((Path, "replace", at, after) for at in range(documents + 3) for after in (False, True)),
        *((Path, "unlink", 0, after) for after in (False, True)),
    ]


def main(model: str, corpus: Path, place: Path) -> None:
    loaded, whole, again = load(model), place / "whole", place / "again"
    assert in_a_child(lambda: run(loaded, corpus, whole)) == 0
    found = []
    for owner, name, at, after in moments(look_through(corpus).documents):

        def until_killed(
            owner: type = owner, name: str = name, at: int = at, after: bool = after
        ) -> None:
            killing(owner, name, at, after=after)
            run(loaded, corpus, again)

        def killed_at_once() -> None:
            killing(Measurer, "measure", 0, after=False)
            run(loaded, corpus, again)

        ended = in_a_child(until_killed)
        in_a_child(killed_at_once)
        assert in_a_child(lambda: run(loaded, corpus, again)) == 0
        same = contents(again) == contents(whole)
        found.append({"at": f"{name} {at} {after}", "ended": ended, "same": same})
        shutil.rmtree(again)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
