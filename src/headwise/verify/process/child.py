"""The child process of `headwise.verify.process`: sets its limits, runs the target, reports.

It writes its stages and the report as lines of JSON; what the target prints goes to stderr.
"""

import faulthandler
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from headwise.errors import HeadwiseError

LARGEST_FILE = 256 << 20


Send = Callable[[str, object], None]  # sends one message, its kind and value, to the parent process


def _send(stream: TextIO, kind: str, value: object) -> None:
    stream.write(json.dumps({kind: value}, ensure_ascii=True, allow_nan=False) + "\n")
    stream.flush()


def main(request: Mapping[str, Any]) -> None:
    """Verify one target and end the process, with all threads of the target.

    Args:
        request: target, name, embed_dim, heads, seed, compiled, stated, seconds and memory.
    """
    with _channel() as stream:
        send = partial(_send, stream)
        try:
            report = _report(request, send)
        except HeadwiseError as error:
            _lift_memory_limit()
            left = isinstance(error.__cause__, SystemExit)
            send(*(_raised(error.__cause__) if left else _of_error(error)))
        except BaseException as error:  # the target's code may raise anything
            _lift_memory_limit()
            send(*_raised(error))
        else:
            send("report", report)
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)


def _channel() -> TextIO:
    """Reserve standard output for messages; redirect what is printed to standard error."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="utf-8")


def _report(request: Mapping[str, Any], send: Send) -> dict[str, object]:
    import torch

    from headwise.verify.diagnosis.verdict import verify
    from headwise.verify.report import data
    from headwise.verify.target import load
    from headwise.verify.target.stated import Stated

    torch.set_num_threads(1)  # several threads are slower at these sizes
    _limit(int(request["memory"]) << 20)
    faulthandler.enable()
    send("at", ["import", ""])
    faulthandler.dump_traceback_later(float(request["seconds"]), exit=False)
    target = load(str(request["target"]))
    send("at", ["construction", ""])
    options = {key: request[key] for key in ("name", "embed_dim", "heads", "seed", "compiled")}
    report = verify(
        target,
        **options,
        stated=Stated(**request["stated"]),
        watch=lambda kind, words: send("at", [kind, words]),
    )
    faulthandler.cancel_dump_traceback_later()
    return data(report)


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
    """Limit additional memory and the size of files, and disable core files."""
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
        with suppress(OSError, ValueError):  # some systems have the name and not the limit
            set_limit(kind, (allowed, hard))


def _lift_memory_limit() -> None:
    """Lift the limit to report an error, which still refers to what filled the memory."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _taken() -> int:
    """Bytes of address space in use; a generous guess where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 8 << 30
