"""Run a target in a process of its own, with limits on time, memory and output.

The process starts in an empty folder, which is deleted afterwards, reads nothing from the terminal,
and is killed with everything it has started. It reports each step before it runs (see
`headwise.verify.process.child`), so that a hang or a crash can be located.
"""

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from headwise.verify.process.messages import (
    GRACE,
    Limits,
    ProcessState,
    Request,
    Stopped,
    error_of,
    read,
)
from headwise.verify.report import file_and_name

__all__ = ["Limits", "Request", "Stopped", "isolated", "search"]

START = 120.0
"""Seconds that Python and PyTorch may take to load before the target's own time begins."""

LONGEST = 32 << 20  # the size limit of one report in bytes

BOOT = """\
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from headwise.verify.process.child import main
main(globals().pop("request"))
"""


def isolated(
    request: Request,
    limits: Limits | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    on_output: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Verify a target in a process of its own.

    Args:
        request: what to verify.
        limits: what it may use.
        progress: called with the name of each check before it runs.
        on_output: called once with what the target printed, also before an error.
        cancelled: asked several times a second; the process is stopped when it returns True.

    Returns:
        The report as `headwise.verify.report.data` makes it, with the CPU seconds of each check.

    Raises:
        Stopped: if it went over a limit, crashed, ended the process, or wrote a report of its own;
            the message says where.
        BadFile: if it cannot be loaded or called, runs out of memory, or replaces functions that
            the verification uses.
        NotRecognised: if it needs an adapter.
    """
    limits = Limits() if limits is None else limits
    state = ProcessState(request, limits, secrets.token_hex(), progress)
    report: dict[str, Any] = _result(state, "report", on_output, cancelled)
    return report


def search(
    file: Path,
    request: Request,
    limits: Limits | None = None,
    *,
    skip: tuple[str, ...] = (),
    progress: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Find the attentions of a file in a process of its own.

    Args:
        file: the Python file, which is run.
        request: the sizes to try its classes and functions with; the target is replaced.
        limits: what it may use.
        skip: names that are not tried.
        progress: called with each name before it is tried.
        cancelled: as in `isolated`.

    Returns:
        What `headwise.verify.submissions.attention_search.attentions` returns.

    Raises:
        BadFile: as in `isolated`, if the file does not load or one of its functions ends it.
    """
    limits = Limits() if limits is None else limits
    own = replace(request, target=str(file))
    state = ProcessState(own, limits, secrets.token_hex(), progress, skip=skip)
    result: dict[str, Any] = _result(state, "attentions", None, cancelled)
    return result


def _result(
    state: ProcessState,
    kind: str,
    on_output: Callable[[str], None] | None,
    cancelled: Callable[[], bool],
) -> Any:
    """The final message of this kind of a process that runs the request of the state."""
    with (
        tempfile.TemporaryDirectory(prefix="headwise-", ignore_cleanup_errors=True) as folder,
        _process(state, kind, folder) as process,
        _listening(process) as heard,
    ):
        _watch(heard, state, lambda: process.poll() is not None, cancelled)
        status = 0
        if state.ended == "output":  # its messages of where it was may still be on the way
            _kill(process)
            _read_rest(heard, state)
        elif not state.ended:
            with suppress(subprocess.TimeoutExpired):  # it may have closed its pipes
                status = process.wait(GRACE)
    if on_output is not None:
        on_output(state.printed.decode("utf-8", "replace"))
    if kind in state.final and state.ended != "refused":
        return state.final[kind]
    raise error_of(state, status)


@contextmanager
def _process(state: ProcessState, kind: str, folder: str) -> Iterator[subprocess.Popen[bytes]]:
    request, limits = state.request, state.limits
    path, name = file_and_name(request.target)
    file = str(Path(path).resolve()) if path else request.target
    target = f"{file}:{name}" if name else file
    paths = [str(Path(entry).resolve()) for entry in sys.path]
    content = {**asdict(limits), **asdict(request), "name": request.target, "path": paths}
    content |= {"target": target, "nonce": state.nonce, "kind": kind, "skip": state.skip}
    content["wall"] = limits.wall_seconds
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


def _watch(
    heard: Heard, state: ProcessState, gone: Callable[[], bool], cancelled: Callable[[], bool]
) -> None:
    """Read messages until the final one, the end of the process, or a limit."""
    limits = state.limits
    deadline, open_pipes = time.monotonic() + START, {"messages", "printed"}
    while open_pipes and not state.ended:
        left = deadline - time.monotonic()
        if left <= 0:
            state.ended = "" if state.final else "wall"
            return
        if cancelled():
            state.ended = "cancelled"
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
            seconds = read(state, chunk)
            deadline = deadline if seconds is None else time.monotonic() + seconds
        if state.much > limits.output or len(state.rest) > LONGEST:
            state.ended = state.ended or "output"


def _read_rest(heard: Heard, state: ProcessState) -> None:
    """Read the messages that a killed process had written."""
    open_pipes = 2
    state.progress = None
    with suppress(queue.Empty):
        while open_pipes:
            name, chunk = heard.get(timeout=GRACE)
            open_pipes -= not chunk
            if name == "messages":
                read(state, chunk)
