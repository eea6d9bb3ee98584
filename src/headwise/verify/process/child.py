"""The child process of `headwise.verify.process`: set limits, run the target and report.

Every message, a stage or the report, is one line of the nonce and JSON. What the target prints
goes to standard error.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from headwise.errors import BadFile, HeadwiseError

LARGEST_FILE = 256 << 20
ORPHANED = 10.0  # if no parent stops the process, it ends this many seconds after the wall limit


Send = Callable[[str, object], None]  # sends a message, of a kind and a value, to the parent


def _send(stream: TextIO, nonce: str, kind: str, value: object) -> None:
    line = json.dumps({kind: value}, ensure_ascii=True, allow_nan=False)
    stream.write(f"{nonce} {line}\n")
    stream.flush()


def main(request: dict[str, Any]) -> None:
    """Verify a target or search a file, then end the process and all threads of the target.

    Args:
        request: the fields of a `Request` and of its `Limits`, and kind, nonce, name and skip.
    """
    with _channel() as stream:
        send = partial(_send, stream, request.pop("nonce"))
        try:
            result = _TASKS[request["kind"]](request, send)
        except HeadwiseError as error:
            _lift_memory_limit()
            left = isinstance(error.__cause__, SystemExit)
            send(*(_raised(error.__cause__) if left else _of_error(error)))
        except BaseException as error:  # the target's code may raise anything
            _lift_memory_limit()
            send(*_raised(error))
        else:
            send(request["kind"], result)
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)


def _channel() -> TextIO:
    """Reserve standard output for messages; redirect printed text to standard error."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="utf-8")


def _report(request: Mapping[str, Any], send: Send) -> dict[str, Any]:
    from headwise.verify.diagnosis.verdict import verify
    from headwise.verify.process.forbidden import Watch
    from headwise.verify.process.tampering import changed, snapshot
    from headwise.verify.report import data, with_forbidden, with_seconds
    from headwise.verify.target import load
    from headwise.verify.target.stated import Stated

    before, watch, clock = snapshot(), Watch(request["forbid"]), _Clock(send)
    _start(request, send)
    with watch:
        target = load(str(request["target"]))
        send("at", ["construction", ""])
        options = {key: request[key] for key in ("name", "embed_dim", "heads", "seed", "compiled")}
        report = verify(target, **options, stated=Stated(**request["stated"]), watch=clock.step)
    seconds = clock.seconds()
    faulthandler.cancel_dump_traceback_later()
    if replaced := changed(before):
        raise _replaced(str(request["name"]), replaced)
    uses = watch.uses(target, str(request["target"]))
    return with_forbidden(with_seconds(data(report), seconds), uses)


def _attentions(request: Mapping[str, Any], send: Send) -> dict[str, Any]:
    from headwise.verify.process.tampering import changed, snapshot
    from headwise.verify.submissions.attention_search import attentions
    from headwise.verify.target.stated import Stated

    before, file = snapshot(), str(request["target"])
    _start(request, send)
    size = (request["embed_dim"], request["heads"])
    result = attentions(
        Path(file),
        size,
        request["seed"],
        skip=request["skip"],
        stated=Stated(**request["stated"]),
        progress=lambda name: send("at", ["search", name]),
    )
    if replaced := changed(before):
        raise _replaced(str(request["name"]), replaced)
    return result


_TASKS = {"report": _report, "attentions": _attentions}


def _replaced(name: str, replaced: list[str]) -> BadFile:
    shown = ", ".join(replaced[:4]) + (", …" if replaced[4:] else "")
    return BadFile(
        "target: {name} replaces {replaced}, which the verification itself uses; do not change "
        "functions of other packages, and give your own functions other names",
        name=name,
        replaced=shown,
    )


class _Clock:
    """Measures the CPU seconds of every check, by check name."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.starts: list[tuple[str, float]] = []

    def step(self, kind: str, words: str) -> None:
        if kind == "check":
            self.starts.append((words, time.process_time()))
        self.send("at", [kind, words])

    def seconds(self) -> dict[str, float]:
        ends = [*(start for _, start in self.starts[1:]), time.process_time()]
        pairs = zip(self.starts, ends, strict=False)
        return {name: round(end - start, 3) for (name, start), end in pairs}


def _start(request: Mapping[str, Any], send: Send) -> None:
    """Set the limits and start the time of the target."""
    import torch

    torch.set_num_threads(1)  # several threads are slower at these sizes
    _limit(int(request["memory"]) << 20)
    faulthandler.enable()
    wall = float(request["wall"])
    if hasattr(signal, "setitimer"):  # the timers end the process if the parent does not
        faulthandler.register(signal.SIGPROF, chain=True)
        signal.setitimer(signal.ITIMER_PROF, float(request["seconds"]))
        signal.setitimer(signal.ITIMER_REAL, wall + ORPHANED)
    send("at", ["import", ""])
    faulthandler.dump_traceback_later(wall, exit=False)


def _raised(error: BaseException | None) -> tuple[str, str]:
    return "raised", " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _of_error(error: HeadwiseError) -> tuple[str, dict[str, object]]:
    from headwise.verify.target import NotRecognised
    from headwise.verify.target.calls.guarded_call import out_of_memory

    return "error", {
        "en": error.text.en,
        "zh": error.text.zh,
        "adapter": isinstance(error, NotRecognised),
        "memory": out_of_memory(error),
    }


def _limit(memory: int) -> None:
    """Limit additional memory and the size of files, and disable core dumps."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, LARGEST_FILE),
        (resource.RLIMIT_AS, memory + _taken()),
    ):
        hard = resource.getrlimit(kind)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(OSError, ValueError):  # some systems only define the name
            set_limit(kind, (allowed, hard))


def _lift_memory_limit() -> None:
    """Lift the memory limit to report an error that still refers to the full memory."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _taken() -> int:
    """Return the bytes of address space in use, or 8 GiB if the system does not report them."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 8 << 30
