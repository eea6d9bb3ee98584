"""Find the source line that most likely contains a mistake."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.verify.mistakes import Mistake

LARGEST = 1 << 20  # only this many characters of a source file are read

PATTERNS = {
    "project": r"q_?proj|k_?proj|v_?proj|qkv|to_[qkv]|w_?[qkv]\b|query|key|value|c_attn|linear",
    "split": r"view|reshape|chunk|split|rearrange|unflatten|transpose|permute|stack",
    "group": r"repeat|expand|group|kv_heads",
    "score": r"matmul|@|bmm|einsum|baddbmm|\.mm\(",
    "scale": r"sqrt|\*\*\s*-?\s*0?\.5|scal|rsqrt",
    "mask": r"masked_fill|where|mask|tril|triu|-?inf|1e9",
    "softmax": r"softmax|\bexp\(|logsumexp",
    "dropout": r"dropout|drop\(",
    "mix": r"matmul|@|bmm|einsum|\.mm\(|\*",
    "merge": r"view|reshape|flatten|\bcat\(|concat|rearrange|transpose|permute|mean|sum",
    "output": r"out|proj|w_?o\b|c_proj|return",
}

INSTEAD = {
    "group": ("split", "score"),
    "scale": ("score", "softmax"),
    "mask": ("softmax", "score"),
    "dropout": ("softmax", "mix"),
    "split": ("merge", "project"),
    "merge": ("output",),
    "softmax": ("mix",),
    "mix": ("softmax",),
    "output": ("merge",),
}
"""For a missing step, the steps whose lines are searched instead."""

BEFORE_SOFTMAX = ("split", "group", "score", "scale", "mask")
AFTER_SOFTMAX = ("mix", "merge", "output")


@dataclass(frozen=True)
class SourceLine:
    """A source line: file, number counted from 1, text without indentation, and function."""

    file: str
    number: int
    text: str
    function: str


def likely_lines(target: object, mistakes: Iterable["Mistake"]) -> dict[str, SourceLine]:
    """Find the most likely source line of each mistake, by name; empty if unreadable.

    The line must look like the step of the mistake and be on the correct side of the softmax. Of
    such lines, the line that shares most words with the typical wrong line is chosen.
    """
    file = _file(target)
    lines = [] if file is None else _statements(target, file)
    likely = {mistake.name: _likely(mistake, lines) for mistake in mistakes}
    return {name: line for name, line in likely.items() if line is not None}


def _likely(mistake: "Mistake", lines: Sequence[SourceLine]) -> SourceLine | None:
    softmax = {line.function: line.number for line in lines if "softmax" in line.text}
    for step in (mistake.step, *INSTEAD.get(mistake.step, ())):
        similar = [line for line in lines if re.search(PATTERNS[step], line.text)]
        for side in (1, 0):
            candidates = [line for line in similar if _side(step, line, softmax) == side]
            if candidates:
                return max(candidates, key=lambda line: _alike(line.text, mistake.wrong))
    return None


def _side(step: str, line: SourceLine, softmax: Mapping[str, int]) -> int:
    """Return 1 for a line on the step's side of the softmax, -1 on the wrong side, 0 on its line.

    Return 1 if the function has no softmax, or if the step may be on either side.
    """
    at = softmax.get(line.function)
    if at is None or step not in (*BEFORE_SOFTMAX, *AFTER_SOFTMAX):
        return 1
    way = 1 if step in AFTER_SOFTMAX else -1
    return way * ((line.number > at) - (line.number < at))


def _alike(text: str, wrong: str) -> float:
    mine, theirs = (set(re.findall(r"[A-Za-z_]\w*|[@*/+-]|\d+", part)) for part in (text, wrong))
    return len(mine & theirs) / max(len(mine | theirs), 1)


def _file(target: object) -> Path | None:
    try:
        file = inspect.getsourcefile(_definition(target))
    except (OSError, TypeError):
        return None
    return Path(file) if file is not None and Path(file).is_file() else None


def _definition(target: object) -> Any:
    return target if inspect.isroutine(target) or isinstance(target, type) else type(target)


def _statements(target: object, file: Path) -> list[SourceLine]:
    """Return the lines of the target's file that compute something for it, in file order."""
    try:
        text = file.read_text(encoding="utf-8")[:LARGEST]
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    lines = text.splitlines()
    result = {
        number: SourceLine(str(file), number, lines[number - 1].strip(), function.name)
        for function in _running(_reached(tree, _definition(target).__name__))
        for number in _computing(function)
    }
    return [result[number] for number in sorted(result)]


def _reached(tree: ast.Module, name: str) -> list[ast.ClassDef | ast.FunctionDef]:
    """Return a definition and all definitions of the file that it uses, transitively."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    defined = {node.name: node for node in ast.walk(tree) if isinstance(node, kinds)}
    top = {node.name for node in tree.body if isinstance(node, kinds)}
    names, waiting = list[str](), [name]
    while waiting:
        name = waiting.pop(0)
        if name in defined and name not in names:
            names.append(name)
            used = (node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name))
            waiting += [other for other in used if other in top]
    return [defined[name] for name in names]


def _running(nodes: Sequence[ast.ClassDef | ast.FunctionDef]) -> list[ast.FunctionDef]:
    """Return the functions of definitions, without constructors and overridden methods."""
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    bases = {b.id: node.name for node in classes for b in node.bases if isinstance(b, ast.Name)}
    result: dict[tuple[str, str], ast.FunctionDef] = {}
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef) and inner.name != "__init__":
                own, child = (node.name, inner.name), bases.get(node.name)
                while child is not None and (child, inner.name) not in result:
                    child = bases.get(child)
                if child is None:
                    result.setdefault(own, inner)
    return list(result.values())


def _computing(function: ast.FunctionDef) -> Iterator[int]:
    kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)

    for node in ast.walk(function):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, kinds) and not docstring:
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
