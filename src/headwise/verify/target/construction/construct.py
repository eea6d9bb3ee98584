"""Construct a user's class: its arguments are solved by trying."""

import ast
import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, product
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from headwise.errors import BadFile
from headwise.lang import Text
from headwise.verify.target import not_recognised, one_line
from headwise.verify.target.construction.arguments import (
    ConstructionSizes,
    acts_on_weights,
    kind_of,
    known_exactly,
    values_of,
)
from headwise.verify.target.stated import NOTHING, Stated

MOST_TRIED, MOST_MADE, MOST_COMBINED = 150, 6, 20000
"""How many constructor calls are tried, how many that succeed are used, and how many combinations
of values are put in order."""

MOST_LEARNED = 40  # how often a config object learns of attributes that a constructor reads


@dataclass(frozen=True, eq=False)
class Variable:
    """One argument, or one attribute of a config object as ``config.name``, and its values."""

    name: str
    values: tuple[object, ...]
    named: bool  # whether its name says its meaning


class Config(SimpleNamespace):
    """A config object that answers by attribute and by key, and notes what it was asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__["missing_names"].append(name)
        raise AttributeError(f"the config object has no attribute {name!r}")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def get(self, name: str, default: object = None) -> Any:
        """As of a dictionary."""
        return (
            getattr(self, name)
            if kind_of(name) and default is None
            else self.__dict__.get(name, default)
        )


@dataclass(frozen=True, eq=False)
class Construction:
    """One way to construct a class.

    Attributes:
        cls: the class.
        arguments: its arguments without dropouts and configs.
        dropouts: its dropout arguments, and whether they act on the attention weights.
        configs: its config arguments, with the class of the object or None, and its attributes.
        sizes: E and H that it is constructed for.
    """

    cls: type[nn.Module]
    arguments: Mapping[str, object]
    dropouts: Mapping[str, bool]
    configs: Mapping[str, tuple[type | None, Mapping[str, object]]]
    sizes: ConstructionSizes
    missing: list[str] = field(default_factory=list)
    alternative: bool = False  # whether its values are not what the names of the arguments say

    def build(self, dropout: float = 0.0) -> nn.Module:
        """A new instance, with seeded parameters."""
        given = self.given(dropout)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a size that is only tried may be 0
            torch.manual_seed(0)
            return self.cls(**given)

    def given(self, dropout: float = 0.0) -> dict[str, object]:
        """Every argument of the constructor, with new config objects."""
        drops = {name: dropout if acts else 0.0 for name, acts in self.dropouts.items()}
        configs = {
            n: self._config(cls, values, dropout) for n, (cls, values) in self.configs.items()
        }
        return {**self.arguments, **drops, **configs}

    def _config(self, cls: type | None, values: Mapping[str, object], dropout: float) -> object:
        given = {
            name: (dropout if acts_on_weights(name) else 0.0)
            if kind_of(name) == "dropout"
            else value
            for name, value in values.items()
        }
        if cls is None:
            return Config(missing_names=self.missing, **given)
        accepted = inspect.signature(cls).parameters
        config = cls(**{name: value for name, value in given.items() if name in accepted})
        for name, value in given.items():
            if name not in accepted:
                setattr(config, name, value)
        return config

    @property
    def shown(self) -> str:
        """The constructor call as a person would write it."""
        words = [f"{name}={value}" for name, value in self.arguments.items()]
        words += [f"{name}=…" for name in self.configs]
        return f"{self.cls.__name__}({', '.join(words)})"

    @property
    def drops(self) -> bool:
        """Whether it can be constructed with dropout on the attention weights."""
        return any(self.dropouts.values()) or bool(self.configs)


def constructions(
    cls: type[nn.Module], sizes: ConstructionSizes, stated: Stated = NOTHING
) -> Iterator[Construction]:
    """The constructor calls that succeed and make parameters, the likely ones first.

    Raises:
        BadFile: if none does; the message says how to state the arguments.
    """
    problem = _Problem.of(cls, sizes, stated)
    made, first_error = 0, None
    seen: set[str] = set()
    for _ in range(MOST_LEARNED):
        learned = False
        for construction in problem.constructions():
            key = repr(
                (dict(construction.arguments), {n: str(v) for n, v in construction.configs.items()})
            )
            if key in seen:
                continue
            seen.add(key)
            try:
                construction.build()
            except (Exception, SystemExit) as error:
                first_error = first_error or (construction, error)
                if construction.missing and problem.learn(construction.missing):
                    learned = True
                    break
                continue
            made += 1
            yield construction
            if made == MOST_MADE:
                return
        if not learned:
            break
    if not made:
        raise unsolved(cls, sizes, first_error)


def counts(cls: type[nn.Module], stated: Stated = NOTHING) -> frozenset[str]:
    """The meanings of the arguments of a class, and of the attributes of its config."""
    problem = _Problem.of(cls, ConstructionSizes(15, 3), stated)
    names = [variable.name.rpartition(".")[2] for variable in problem.variables]
    for classes in problem.configs.values():
        names += [name for item in classes if item is not None for name in _ints(item)]
    names += list(problem.fixed)
    return frozenset(map(kind_of, names))


def unsolved(
    cls: type, sizes: ConstructionSizes, error: tuple[Construction, BaseException] | None
) -> BadFile:
    """The error for a class that cannot be constructed; it offers an instance and ``--set``."""
    names = [n for n, p in inspect.signature(cls).parameters.items() if p.default is p.empty]
    reason = Text(
        "{class_name} cannot be constructed: {call} raises {error}; set an argument with --set "
        "{argument}={value}, or write attn = {class_name}({values}) with your own numbers at the "
        "end of the file and verify file.py:attn",
        class_name=cls.__name__,
        call=error[0].shown if error else f"{cls.__name__}()",
        error=one_line(error[1]) if error else "-",
        argument=names[0] if names else "name",
        value=sizes.embed_dim,
        values=", ".join(map(str, (sizes.embed_dim, sizes.heads)[: max(len(names), 1)])),
    )
    return not_recognised(reason)


@dataclass(eq=False)
class _Problem:
    """The arguments of one class, of which some are variables."""

    cls: type[nn.Module]
    sizes: ConstructionSizes
    fixed: dict[str, object]
    dropouts: dict[str, bool]
    variables: list[Variable]
    configs: dict[str, list[type | None]]

    @classmethod
    def of(cls, target: type[nn.Module], sizes: ConstructionSizes, stated: Stated) -> "_Problem":
        parameters = _parameters(target)
        problem = cls(target, sizes, {}, {}, [], {})
        for name, parameter in parameters.items():
            required = parameter.default is parameter.empty
            if name in stated.arguments:
                problem.fixed[name] = stated.arguments[name]
            elif kind_of(name) == "dropout":
                problem.dropouts[name] = acts_on_weights(name)
            elif required and (kind_of(name) == "config" or _config_class(parameter.annotation)):
                problem.configs[name] = _config_classes(target, parameter.annotation)
            else:
                values = values_of(parameter, sizes)
                if values:
                    named = bool(kind_of(name)) and (required or known_exactly(name))
                    problem.variables.append(Variable(name, values, named))
        kinds = [p.kind for p in inspect.signature(target).parameters.values()]
        if inspect.Parameter.VAR_KEYWORD in kinds:
            problem.fixed |= {n: v for n, v in stated.arguments.items() if n not in parameters}
        problem.learn(_read_names(target, tuple(problem.configs)))
        return problem

    def learn(self, names: Sequence[str]) -> bool:
        """Take attributes that a config object was asked for as variables."""
        known = {variable.name for variable in self.variables}
        news = []
        for config, classes in self.configs.items():
            if None in classes:
                for name in dict.fromkeys(names):
                    if f"{config}.{name}" not in known:
                        parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
                        values = (
                            (0.0,)
                            if kind_of(name) == "dropout"
                            else values_of(parameter, self.sizes)
                        )
                        news.append(Variable(f"{config}.{name}", values, bool(kind_of(name))))
        self.variables += news
        return bool(news)

    def constructions(self) -> Iterator[Construction]:
        """Every combination of values, the likely ones first."""
        names = list(self.configs)
        for classes in product(*self.configs.values()):
            fields = dict(zip(names, classes, strict=True))
            extra = [
                variable
                for name, cls in fields.items()
                if cls is not None
                for variable in _fields(name, cls, self.sizes)
            ]
            for values, alternative in _ordered([*self.variables, *extra], self.sizes):
                yield replace(self._construction(fields, values), alternative=alternative)

    def _construction(
        self, fields: Mapping[str, type | None], values: Mapping[str, object]
    ) -> Construction:
        own = {name: value for name, value in values.items() if "." not in name}
        configs = {
            config: (
                cls,
                {n.partition(".")[2]: v for n, v in values.items() if n.startswith(f"{config}.")},
            )
            for config, cls in fields.items()
        }
        arguments = {**self.fixed, **own}
        return Construction(self.cls, arguments, self.dropouts, configs, self.sizes)


def _ordered(
    variables: Sequence[Variable], sizes: ConstructionSizes
) -> Iterator[tuple[dict[str, object], bool]]:
    """The combinations by how likely they are: first values first, E and H once each.

    With each of them, whether an argument has another value than its name says.
    """
    ranges = [range(len(variable.values)) for variable in variables]
    unnamed = [i for i, v in enumerate(variables) if not v.named and len(v.values) > 1]
    used = [v.values[0] for v in variables if v.named]

    def cost(ranks: tuple[int, ...]) -> tuple[int, int]:
        chosen = [variables[i].values[ranks[i]] for i in unnamed]
        every = [*used, *chosen]
        twice = len(chosen) - len({*map(str, chosen)} - {*map(str, used)})
        absent = sum(size not in every for size in (sizes.embed_dim, sizes.heads)) if unnamed else 0
        return sum(ranks) + twice + 2 * absent, twice

    combinations = sorted(islice(product(*ranges), MOST_COMBINED), key=cost)
    for ranks in combinations[:MOST_TRIED]:
        pairs = list(zip(variables, ranks, strict=True))
        other = any(rank and v.named and _sure(v.name) for v, rank in pairs)
        yield {v.name: v.values[rank] for v, rank in pairs}, other


def _sure(name: str) -> bool:
    """Whether the name of an argument leaves no doubt of its meaning."""
    return kind_of(name.rpartition(".")[2]) in ("embed", "heads")


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(cls).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in parameters.items() if p.kind not in variadic}


def _read_names(cls: type, configs: tuple[str, ...]) -> list[str]:
    """The attributes and keys of its config that the source of a class reads."""
    names: list[str] = []
    with suppress(OSError, TypeError, SyntaxError):
        for node in ast.walk(ast.parse(dedent(inspect.getsource(cls)))):
            if not isinstance(node, ast.Attribute | ast.Subscript):
                continue
            of = node.value
            word = of.id if isinstance(of, ast.Name) else getattr(of, "attr", "")
            if word not in configs:
                continue
            if isinstance(node, ast.Attribute):
                names.append(node.attr)
            elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                names.append(node.slice.value)
    return [name for name in dict.fromkeys(names) if name not in ("get", "copy", "items")]


def _config_class(annotation: object) -> bool:
    """Whether an annotation is a class that a person wrote for settings."""
    if not isinstance(annotation, type) or annotation.__module__ in ("builtins", "torch"):
        return False
    return not issubclass(annotation, nn.Module) and bool(_ints(annotation))


def _config_classes(cls: type, annotation: object) -> list[type | None]:
    """The annotated class, the classes of the same file that hold sizes, and a plain object."""
    module = sys.modules.get(cls.__module__)
    own = vars(module).values() if module else ()
    classes = [
        item
        for item in own
        if isinstance(item, type)
        and not issubclass(item, nn.Module | BaseException)
        and item.__module__ == cls.__module__
        and any(kind_of(name) in ("embed", "heads") for name in _ints(item))
    ]
    first = [annotation] if _config_class(annotation) and isinstance(annotation, type) else []
    return [*dict.fromkeys((*first, *classes)), None]


def _ints(cls: type) -> list[str]:
    """The names of a class that hold plain numbers: its arguments and its attributes."""
    names = [name for name, value in vars(cls).items() if isinstance(value, int) and name[0] != "_"]
    with suppress(ValueError, TypeError):
        names += [name for name in _parameters(cls) if kind_of(name)]
    return list(dict.fromkeys(names))


def _fields(config: str, cls: type, sizes: ConstructionSizes) -> Iterator[Variable]:
    """The sizes of a config class as variables."""
    own: dict[str, inspect.Parameter] = {}
    with suppress(ValueError, TypeError):
        own = _parameters(cls)
    for name in dict.fromkeys((*own, *_ints(cls))):
        default = own[name].default if name in own else getattr(cls, name, None)
        kind = kind_of(name)
        if kind == "dropout":
            yield Variable(f"{config}.{name}", (0.0,), named=True)
        elif kind in ("embed", "heads", "head_dim", "kv_heads") and (
            kind == "kv_heads" or default is not None
        ):
            parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
            yield Variable(f"{config}.{name}", values_of(parameter, sizes), named=True)
        elif name in own and default is inspect.Parameter.empty:
            yield Variable(f"{config}.{name}", values_of(own[name], sizes), named=bool(kind))
