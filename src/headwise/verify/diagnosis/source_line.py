"""The source line on which a mistake most likely is."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.verify.mistakes import Mistake

LARGEST = 1 << 20
"""How many characters of source are read."""

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
"""What stands on a line that makes each step."""

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
"""Where a step would stand that is missing."""

BEFORE_SOFTMAX = ("split", "group", "score", "scale", "mask")
AFTER_SOFTMAX = ("mix", "merge", "output")


@dataclass(frozen=True)
class SourceLine:
    """One line of a file.

    Attributes:
        file: its path.
        number: counted from 1.
        text: what stands there, without the indent.
    """

    file: str
    number: int
    text: str

    def data(self) -> dict[str, object]:
        """The same as plain data."""
        return {"file": self.file, "line": self.number, "text": self.text}


@dataclass(frozen=True)
class _Statement:
    """One line of code that runs, and the function it stands in."""

    number: int
    text: str
    function: str


def likely_lines(target: object, mistakes: Iterable["Mistake"]) -> dict[str, SourceLine]:
    """For each mistake, by name, its most likely source line; empty where unreadable.

    A line is taken by what stands on it: it has to look like the mistake's step, on the right side
    of the softmax; among such lines the one wins that shares most words with the wrong line as
    people write it.

    Args:
        target: a class, a module or a function.
        mistakes: what was found wrong with it.
    """
    file = _file(target)
    statements = [] if file is None else _statements(target, file)
    result = {mistake.name: _of(mistake, statements) for mistake in mistakes}
    return {
        name: SourceLine(str(file), statement.number, statement.text)
        for name, statement in result.items()
        if statement is not None
    }


def _of(mistake: "Mistake", statements: Sequence[_Statement]) -> _Statement | None:
    softmax = {
        statement.function: statement.number
        for statement in statements
        if "softmax" in statement.text
    }
    for step in (mistake.step, *INSTEAD.get(mistake.step, ())):
        looks = [statement for statement in statements if re.search(PATTERNS[step], statement.text)]
        beyond = [statement for statement in looks if _side(step, statement, softmax) > 0]
        candidates = beyond or [
            statement for statement in looks if _side(step, statement, softmax) == 0
        ]
        if candidates:
            return max(candidates, key=lambda statement: _alike(statement.text, mistake.wrong))
    return None


def _side(step: str, statement: _Statement, softmax: Mapping[str, int]) -> int:
    """1 on the step's side of the softmax in its function, -1 on the other, 0 on the same line.

    Where a function has no softmax, or the step may stand on either side, every line is as good.
    """
    at = softmax.get(statement.function)
    if at is None or step not in (*BEFORE_SOFTMAX, *AFTER_SOFTMAX):
        return 1
    way = 1 if step in AFTER_SOFTMAX else -1
    return way * ((statement.number > at) - (statement.number < at))


def _alike(text: str, wrong: str) -> float:
    """The Jaccard similarity of the tokens of two lines."""
    mine, theirs = (set(re.findall(r"[A-Za-z_]\w*|[@*/+-]|\d+", part)) for part in (text, wrong))
    return len(mine & theirs) / max(len(mine | theirs), 1)


def _file(target: object) -> Path | None:
    """The file that a target was written in."""
    try:
        file = inspect.getsourcefile(_definition(target))
    except (OSError, TypeError):
        return None
    return Path(file) if file is not None and Path(file).is_file() else None


def _definition(target: object) -> Any:
    return target if inspect.isroutine(target) or isinstance(target, type) else type(target)


def _statements(target: object, file: Path) -> list[_Statement]:
    """The statements of the target's file that run with it, in line order."""
    try:
        text = file.read_text(encoding="utf-8")[:LARGEST]
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    lines = text.splitlines()
    result = {
        number: _Statement(number, lines[number - 1].strip(), function.name)
        for function in _running(_reached(tree, _definition(target).__name__))
        for number in _computing(function)
    }
    return [result[number] for number in sorted(result)]


def _reached(tree: ast.Module, name: str) -> list[ast.ClassDef | ast.FunctionDef]:
    """A definition, and the definitions of the same file that it uses, transitively."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    defined = {node.name: node for node in ast.walk(tree) if isinstance(node, kinds)}
    top = {node.name for node in tree.body if isinstance(node, kinds)}
    names, waiting = list[str](), [name]
    while waiting:
        name = waiting.pop(0)
        if name in defined and name not in names:
            names.append(name)
            used = (node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name))
            waiting += [statement for statement in used if statement in top]
    return [defined[name] for name in names]


def _running(nodes: Sequence[ast.ClassDef | ast.FunctionDef]) -> list[ast.FunctionDef]:
    """The functions of these definitions, without constructors and overridden methods."""
    bases = {
        base.id: node.name
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name)
    }
    result: dict[tuple[str, str], ast.FunctionDef] = {}
    for node in nodes:
        for statement in ast.walk(node):
            if isinstance(statement, ast.FunctionDef) and statement.name != "__init__":
                own, child = (node.name, statement.name), bases.get(node.name)
                while child is not None and (child, statement.name) not in result:
                    child = bases.get(child)
                if child is None:
                    result.setdefault(own, statement)
    return list(result.values())


def _computing(function: ast.FunctionDef) -> Iterator[int]:
    """The lines of the statements that compute."""
    kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
    for node in ast.walk(function):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, kinds) and not docstring:
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
