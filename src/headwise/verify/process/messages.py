"""Read the messages of a target's process, and turn a failure of the process into an error.

Every message is one line: the nonce of the run and a JSON object. The target does not know the
nonce; a report without the nonce, or on another target, is refused.
"""

import json
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise import __version__
from headwise.errors import BadFile
from headwise.lang import Text, Translated
from headwise.verify.report import file_and_name
from headwise.verify.report.formats import faults
from headwise.verify.target import NotRecognised, no_memory
from headwise.verify.target.stated import NOTHING, Stated

GRACE = 2.0  # seconds that a process over its time limit has to report its position


@dataclass(frozen=True)
class Limits:
    """The limits on the time, memory and output of a target.

    Attributes:
        seconds: CPU seconds from the import of the target to the end of the last check; CPU time
            does not depend on how busy the machine is.
        memory: MiB in addition to those of Python and PyTorch.
        output: the number of bytes that the target may print.
        wall: wall-clock seconds, for a target that waits; None for `WALL` times `seconds`.
    """

    seconds: float = 120.0
    memory: int = 4096
    output: int = 1 << 20
    wall: float | None = None

    @property
    def wall_seconds(self) -> float:
        """The limit on the wall-clock time, in seconds."""
        return WALL * self.seconds if self.wall is None else self.wall


WALL = 5.0
"""The default limit on the wall-clock time, as a multiple of the limit on the CPU time."""


@dataclass(frozen=True)
class Request:
    """A target, ``file.py:Name`` or ``package.Name``, and the options of `verify`.

    Attributes:
        forbid: the dotted names that the target may not use; see
            `headwise.verify.process.forbidden`.
        stated: the conventions that a person states; see `headwise.verify.target.stated`.
    """

    target: str
    embed_dim: int = 15
    heads: int = 3
    seed: int = 0
    compiled: bool = False
    forbid: tuple[str, ...] = ()
    stated: Stated = NOTHING


class Stopped(BadFile):
    """Raised if a target ended its process, or was stopped, before there was a report.

    `brief` is the message without the location, which differs from run to run.
    """

    brief: Text | None = None


@dataclass
class ProcessState:
    """The state of the process; `printed` is cut at the limit, `much` counts all printed bytes.

    `ended` says why the process was stopped: "wall", "output", "cancelled" or "refused"; it is
    empty if the process was not stopped.
    """

    request: Request
    limits: Limits
    nonce: str
    progress: Callable[[str], None] | None = None
    skip: tuple[str, ...] = ()
    stage: str = "start"
    words: str = ""
    calls: int = 0
    check: str = ""
    final: dict[str, Any] = field(default_factory=dict)
    printed: bytearray = field(default_factory=bytearray)
    much: int = 0
    ended: str = ""
    refused: Text = field(default_factory=lambda: Text(""))
    rest: bytes = b""


def read(state: ProcessState, chunk: bytes) -> float | None:
    """Process messages; return the new limit in wall-clock seconds if a message changes it."""
    *lines, state.rest = (state.rest + chunk).split(b"\n")
    seconds = None
    for line in lines:
        kind, value = _message(state, line)
        if kind != "at":
            state.final = state.final or ({kind: value} if kind else {})
            seconds = GRACE if state.final else seconds
            continue
        state.stage, state.words = (str(word) for word in value)
        state.calls += state.stage == "call"
        if state.stage == "import":
            seconds = state.limits.wall_seconds + GRACE
        if state.stage in ("check", "search"):
            state.check = state.words
            if state.progress:
                state.progress(state.words)
    return seconds


def _message(state: ProcessState, line: bytes) -> tuple[str, Any]:
    """Parse a message into kind and value; the kind is empty if it is malformed or refused."""
    nonce, _, content = line.partition(b" ")
    own = nonce == state.nonce.encode()
    try:
        ((kind, value),) = json.loads(content if own else line).items()
    except (ValueError, AttributeError, RecursionError):
        return "", None
    keys = {"en", "zh", "adapter", "memory"}
    fits: dict[str, Callable[[], bool]] = {
        "at": lambda: isinstance(value, list) and len(value) == 2,
        "report": lambda: not faults(value),
        "attentions": lambda: isinstance(value, dict),
        "raised": lambda: isinstance(value, str),
        "error": lambda: isinstance(value, dict) and keys <= set(value),
    }
    if kind not in fits or not fits[kind]():
        return "", None
    wrong = _foreign(state.request, value) if kind == "report" else ""
    if wrong or not own:
        what = Text("a report on {target}", target=wrong) if wrong else Text("a message of its own")
        state.ended, state.refused = "refused", what
        return "", None
    return kind, value


def _foreign(request: Request, report: dict[str, Any]) -> str:
    """What a report is on where it is not on the target of the request; empty where it is."""
    expected = {"target": request.target, "seed": request.seed, "headwise": __version__}
    got = {name: report.get(name, expected[name]) for name in expected}
    return "" if got == expected else ", ".join(f"{value}" for value in got.values())[:200]


def error_of(state: ProcessState, status: int) -> BadFile:
    """Return the error for a process that ended with an exit status but without a report."""
    where, name = _where(state), state.request.target
    if "error" in state.final:
        error = state.final["error"]
        if error["memory"]:
            memory = state.limits.memory
            return no_memory(name, Text("{where}, {memory} MiB", where=where, memory=memory))
        text = Translated(str(error["en"]), str(error["zh"]))
        return NotRecognised(text) if error["adapter"] else BadFile(text)
    if state.ended == "refused":
        return Stopped(
            "target: {name} wrote {what} where headwise writes its report; the report is refused; "
            "remove the code that writes to the file descriptors of the process",
            name=name,
            what=state.refused,
        )
    what = _end(state, status)
    error = Stopped(
        "target: {name} {what}, {where}; expected it to return; run it without headwise to see why",
        name=name,
        what=what,
        where=where,
    )
    error.brief = Text("{name} {what}", name=name, what=what)
    return error


def _end(state: ProcessState, status: int) -> Text:
    """Describe how a process ended that did not return a report."""
    limits = state.limits
    if "raised" in state.final:
        return Text("raises {error}", error=state.final["raised"])
    if state.ended == "output":
        return Text("printed more than {output} bytes and was stopped", output=limits.output)
    if state.ended == "cancelled":
        return Text("was stopped together with headwise")
    if out_of_cpu(status):
        return Text(
            "was stopped after {seconds:g} s of CPU time (--time-limit)", seconds=limits.seconds
        )
    if state.ended:
        return Text("was stopped after {seconds:g} s (--wall-limit)", seconds=limits.wall_seconds)
    if status >= 0:
        return Text("ended the process itself, with status {status}", status=status)
    names = {signal_.value: signal_.name for signal_ in signal.Signals}
    return Text("crashed with {name}", name=names.get(-status, str(-status)))


def out_of_cpu(status: int) -> bool:
    """Whether an exit status is that of the timer for the CPU time."""
    return hasattr(signal, "SIGPROF") and status == -signal.SIGPROF


def _where(state: ProcessState) -> Text:
    number = _line(state)
    line = Text(" at line {number}", number=number) if number else Text("")
    check = state.check or Text("first call")
    stages = {
        "start": Text("before it was loaded"),
        "import": Text("while it was imported{line}", line=line),
        "construction": Text("while it was constructed{line}", line=line),
        "check": Text("in the check {check}{line}", check=check, line=line),
        "search": Text("while its {name} was tried{line}", name=check, line=line),
    }
    return stages.get(state.stage) or Text(
        "in call {count}, {arguments} ({check}){line}",
        count=state.calls,
        arguments=state.words,
        check=check,
        line=line,
    )


TRACES = ("Timeout (", "Fatal Python error", "Current thread ", "Stack (most recent")
"""The beginnings of the traces that Python writes when a process is ended."""


def _line(state: ProcessState) -> str:
    """Return the innermost line of the target's file in the last printed trace, or nothing."""
    path, _ = file_and_name(state.request.target)
    trace = state.printed.decode("utf-8", "replace")
    start = max(map(trace.rfind, TRACES))
    if not path or start < 0:
        return ""
    name = re.escape(str(Path(path).resolve()))
    result = re.search(rf'File "{name}", line (\d+)', trace[start:])
    return result[1] if result else ""
