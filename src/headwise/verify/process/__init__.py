"""Run a target in a separate process, with limits on time, memory and output.

The process starts in an empty folder, which is deleted afterwards, and reads nothing from the
terminal. It is killed together with its child processes. It reports each stage before it begins
(see `headwise.verify.process.child`), so that a hang or a crash can be located.
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
"""Seconds that Python and PyTorch may take to load; the target's limit starts after that."""

LONGEST = 32 << 20  # the size limit of one message in bytes

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
    """Verify a target in a separate process.

    Args:
        request: the target and the options of the verification.
        limits: the limits on time, memory and output; default: `Limits()`.
        progress: called with the name of each check before the check runs.
        on_output: called once with what the target printed, also if an error is raised.
        cancelled: called several times a second; if it returns True, the process is stopped.

    Returns:
        The report, as in `headwise.verify.report.data`, with the CPU seconds of each check.

    Raises:
        Stopped: if the target exceeded a limit, crashed, ended the process or wrote a report
            itself; the message gives the location.
        BadFile: if the target cannot be loaded or called, runs out of memory, or replaces
            functions that the verification uses.
        NotRecognised: if the target needs an adapter.
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
    """Find the attention classes, functions and modules of a file in a separate process.

    Args:
        file: the Python file; its code is run.
        request: the sizes and the seed for the trials; its target is not used.
        limits: the limits on time, memory and output; default: `Limits()`.
        skip: names in the file that are not tried.
        progress: called with each name before the name is tried.
        cancelled: as in `isolated`.

    Returns:
        What `headwise.verify.submissions.attention_search.attentions` returns.

    Raises:
        BadFile: as in `isolated`: if the file does not load, or its code ends the process.
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
    """Run the request of a state in a process and return its final message of the given kind."""
    with (
        tempfile.TemporaryDirectory(prefix="headwise-", ignore_cleanup_errors=True) as folder,
        _process(state, kind, folder) as process,
        _listening(process) as heard,
    ):
        _watch(heard, state, lambda: process.poll() is not None, cancelled)
        status = 0
        if state.ended == "output":  # messages that locate the target may still be unread
            _kill(process)
            _read_rest(heard, state)
        elif not state.ended:
            with suppress(subprocess.TimeoutExpired):  # a target may close its pipes and run on
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
            os.killpg(process.pid, signal.SIGKILL)  # the group may outlive the process itself
        else:
            process.kill()


Heard = queue.Queue[tuple[str, bytes]]
"""Pairs of a pipe's name and a chunk read from it; b"" marks the end of the pipe."""


@contextmanager
def _listening(process: subprocess.Popen[bytes]) -> Iterator[Heard]:
    """Read both pipes in threads, so that a full pipe never blocks the process."""
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
    """Read messages until the final message, the end of the process, or a limit."""
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
                return  # a child of the process still holds the pipes open
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
    """Read the messages that a process wrote before it was killed."""
    open_pipes = 2
    state.progress = None
    with suppress(queue.Empty):
        while open_pipes:
            name, chunk = heard.get(timeout=GRACE)
            open_pipes -= not chunk
            if name == "messages":
                read(state, chunk)
