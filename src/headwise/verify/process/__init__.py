"""Run a target in a process of its own, with limits on time, memory and output.

The process starts in an empty folder, which is deleted afterwards, reads nothing from the terminal,
and is killed with everything it has started. It reports each step before it runs (see
`headwise.verify.process.child`), so that a hang or a crash can be located.
"""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from headwise.errors import BadFile
from headwise.lang import Text, Translated
from headwise.verify.report.formats import faults
from headwise.verify.target import NotRecognised, no_memory
from headwise.verify.target.stated import NOTHING, Stated

START = 120.0
"""Seconds that Python and PyTorch may take to load before the target's own time begins."""

GRACE = 2.0  # seconds for a process that has run out of time to report its position
LONGEST = 32 << 20  # the size limit of one report in bytes

BOOT = """\
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from headwise.verify.process.child import main
main(request)
"""


@dataclass(frozen=True)
class Limits:
    """The limits of a target.

    Attributes:
        seconds: wall time, from its import to the end of the last check.
        memory: MiB beside what Python and PyTorch take.
        output: bytes that it may print.
    """

    seconds: float = 120.0
    memory: int = 4096
    output: int = 1 << 20


@dataclass(frozen=True)
class Request:
    """A target, ``file.py:Name`` or ``package.Name``, and the options of `verify`.

    Attributes:
        stated: the conventions that a person states; see `headwise.verify.target.stated.Stated`.
    """

    target: str
    embed_dim: int = 15
    heads: int = 3
    seed: int = 0
    compiled: bool = False
    stated: Stated = NOTHING


class Stopped(BadFile):
    """A target that ended or was stopped before it produced a report."""


@dataclass
class _ProcessState:
    """The state of the process; `printed` is cut at the limit, `much` counts all bytes."""

    stage: str = "start"
    words: str = ""
    calls: int = 0
    check: str = ""
    final: dict[str, Any] = field(default_factory=dict)
    printed: bytearray = field(default_factory=bytearray)
    much: int = 0
    ended: str = ""
    rest: bytes = b""


def isolated(
    request: Request,
    limits: Limits | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    on_output: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Verify a target in a process of its own.

    Args:
        request: what to verify.
        limits: what it may use.
        progress: called with the name of each check before it runs.
        on_output: called once with what the target printed, also before an error.

    Returns:
        The report as `headwise.verify.report.data` makes it.

    Raises:
        Stopped: if it went over a limit, crashed, or ended the process; the message says where.
        BadFile: if it cannot be loaded or called, or runs out of memory.
        NotRecognised: if it needs an adapter.
    """
    limits = Limits() if limits is None else limits
    state = _ProcessState()
    with (
        tempfile.TemporaryDirectory(prefix="headwise-", ignore_cleanup_errors=True) as folder,
        _process(request, limits, folder) as process,
        _listening(process) as heard,
    ):
        _watch(heard, state, limits, progress, lambda: process.poll() is not None)
        status = 0
        if state.ended == "output":  # its messages of where it was may still be on the way
            _kill(process)
            _read_rest(heard, state, limits)
        elif not state.ended:
            with suppress(subprocess.TimeoutExpired):  # it may have closed its pipes
                status = process.wait(GRACE)
    if on_output is not None:
        on_output(state.printed.decode("utf-8", "replace"))
    if "report" in state.final:
        report: dict[str, Any] = state.final["report"]
        return report
    raise _error(request, limits, state, status)


@contextmanager
def _process(request: Request, limits: Limits, folder: str) -> Iterator[subprocess.Popen[bytes]]:
    path, colon, name = request.target.rpartition(":")
    target = f"{Path(path).resolve()}:{name}" if colon else request.target
    paths = [str(Path(entry).resolve()) for entry in sys.path]
    content = {**asdict(limits), **asdict(request), "name": request.target, "path": paths}
    content["target"] = target
    process = subprocess.Popen(  # noqa: S603 (our own interpreter and source)
        [sys.executable, "-c", BOOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        start_new_session=True,
    )
    try:
        with suppress(OSError), process.stdin or open(os.devnull, "wb") as pipe:  # noqa: PTH123
            pipe.write(json.dumps(content).encode())
        yield process
    finally:
        _kill(process)
        process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)  # the group outlives its leader
        else:
            process.kill()


Heard = queue.Queue[tuple[str, bytes]]
"""Chunks with the name of their pipe; b"" means that the pipe has ended."""


@contextmanager
def _listening(process: subprocess.Popen[bytes]) -> Iterator[Heard]:
    """Read both pipes in threads, so that neither blocks the process."""
    heard, stop = Heard(maxsize=64), threading.Event()

    def put(name: str, chunk: bytes) -> None:
        while not stop.is_set():
            with suppress(queue.Full):
                heard.put((name, chunk), timeout=0.1)
                return

    def listen(name: str, stream: IO[bytes]) -> None:
        with suppress(OSError, ValueError), stream:
            while not stop.is_set() and (chunk := os.read(stream.fileno(), 1 << 16)):
                put(name, chunk)
        put(name, b"")

    pipes = (("messages", process.stdout), ("printed", process.stderr))
    threads = [threading.Thread(target=listen, args=pipe, daemon=True) for pipe in pipes]
    try:
        for thread in threads:
            thread.start()
        yield heard
    finally:
        stop.set()
        _kill(process)
        for thread in threads:
            thread.join(GRACE)


Progress = Callable[[str], None] | None


def _watch(
    heard: Heard, state: _ProcessState, limits: Limits, progress: Progress, gone: Callable[[], bool]
) -> None:
    """Read messages until the final one, the end of the process, or a limit."""
    deadline, open_pipes = time.monotonic() + START, {"messages", "printed"}
    while open_pipes and not state.ended:
        left = deadline - time.monotonic()
        if left <= 0:
            state.ended = "" if state.final else "time"
            return
        try:
            name, chunk = heard.get(timeout=min(left, 0.2))
        except queue.Empty:
            if gone():
                return  # another process still holds the pipes
            continue
        if not chunk:
            open_pipes.discard(name)
        elif name == "printed":
            state.much += len(chunk)
            state.printed += chunk[: limits.output - len(state.printed)]
        else:
            seconds = _read(state, chunk, progress, limits)
            deadline = deadline if seconds is None else time.monotonic() + seconds
        if state.much > limits.output or len(state.rest) > LONGEST:
            state.ended = "output"


def _read_rest(heard: Heard, state: _ProcessState, limits: Limits) -> None:
    """Read the messages that a killed process had written."""
    open_pipes = 2
    with suppress(queue.Empty):
        while open_pipes:
            name, chunk = heard.get(timeout=GRACE)
            open_pipes -= not chunk
            if name == "messages":
                _read(state, chunk, None, limits)


def _read(state: _ProcessState, chunk: bytes, progress: Progress, limits: Limits) -> float | None:
    """Process messages; return the new time limit where it changes."""
    *lines, state.rest = (state.rest + chunk).split(b"\n")
    seconds = None
    for line in lines:
        kind, value = _message(line)
        if kind != "at":
            state.final = state.final or ({kind: value} if kind else {})
            seconds = GRACE if state.final else seconds
            continue
        state.stage, state.words = (str(word) for word in value)
        state.calls += state.stage == "call"
        if state.stage == "import":
            seconds = limits.seconds + GRACE
        if state.stage == "check":
            state.check = state.words
            if progress:
                progress(state.words)
    return seconds


def _message(line: bytes) -> tuple[str, Any]:
    """One message as kind and value; an empty kind where it is malformed."""
    try:
        ((kind, value),) = json.loads(line).items()
    except (ValueError, AttributeError, RecursionError):
        return "", None
    keys = {"en", "zh", "adapter", "memory"}
    fits: dict[str, Callable[[], bool]] = {
        "at": lambda: isinstance(value, list) and len(value) == 2,
        "report": lambda: not faults(value),
        "raised": lambda: isinstance(value, str),
        "error": lambda: isinstance(value, dict) and keys <= set(value),
    }
    return (kind, value) if kind in fits and fits[kind]() else ("", None)


def _error(request: Request, limits: Limits, state: _ProcessState, status: int) -> BadFile:
    where, name = _where(state, request), request.target
    if "error" in state.final:
        error = state.final["error"]
        if error["memory"]:
            return no_memory(name, Text("{where}, {memory} MiB", where=where, memory=limits.memory))
        text = Translated(str(error["en"]), str(error["zh"]))
        return NotRecognised(text) if error["adapter"] else BadFile(text)
    if "raised" in state.final:
        what = Text("raises {error}", error=state.final["raised"])
    elif state.ended == "output":
        what = Text("printed more than {output} bytes and was stopped", output=limits.output)
    elif state.ended:
        what = Text("was stopped after {seconds:g} s (--time-limit)", seconds=limits.seconds)
    elif status >= 0:
        what = Text("ended the process itself, with status {status}", status=status)
    else:
        names = {signal_.value: signal_.name for signal_ in signal.Signals}
        what = Text("crashed with {name}", name=names.get(-status, str(-status)))
    return Stopped(
        "target: {name} {what}, {where}; expected it to return; run it with Python alone to see",
        name=name,
        what=what,
        where=where,
    )


def _where(state: _ProcessState, request: Request) -> Text:
    number = _line(state, request)
    line = Text(" at line {number}", number=number) if number else Text("")
    check = state.check or Text("first call")
    stages = {
        "start": Text("before it was loaded"),
        "import": Text("while it was imported{line}", line=line),
        "construction": Text("while it was constructed{line}", line=line),
        "check": Text("in the check {check}{line}", check=check, line=line),
    }
    return stages.get(state.stage) or Text(
        "in call {count}, {arguments} ({check}){line}",
        count=state.calls,
        arguments=state.words,
        check=check,
        line=line,
    )


def _line(state: _ProcessState, request: Request) -> str:
    """The innermost line of the target's own file in Python's last trace."""
    path = request.target.rpartition(":")[0]
    if not path or not (state.ended == "time" or b"Fatal Python error" in state.printed):
        return ""
    trace = state.printed.decode("utf-8", "replace")
    trace = trace[max(trace.rfind("Timeout ("), trace.rfind("Fatal Python error"), 0) :]
    name = re.escape(str(Path(path).resolve()))
    result = re.search(rf'File "{name}", line (\d+)', trace)
    return result[1] if result else ""
