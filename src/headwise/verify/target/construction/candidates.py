"""Every way to read a loaded target: how it is constructed, and how many heads it has."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from torch import nn

from headwise.errors import BadFile, BadValue
from headwise.lang import Text
from headwise.verify.target import not_recognised
from headwise.verify.target.calls.guarded_call import CallLog
from headwise.verify.target.calls.signature import parameters_of, signatures
from headwise.verify.target.construction.arguments import ConstructionSizes
from headwise.verify.target.construction.construct import Construction, constructions, counts
from headwise.verify.target.conventions import Runner
from headwise.verify.target.module_runner import of_module, sized
from headwise.verify.target.runners import AdapterRunner, FunctionRunner
from headwise.verify.target.stated import Stated

DEFAULT = (15, 3)
"""E and H if nothing else is stated: all sizes differ, and D = 5 is odd."""

OTHERS = ((24, 3), (32, 4), (64, 8))
"""E and H for targets that do not take the default: an even D, powers of two."""

GROUPED = (30, 6)
"""E and H for targets with key/value heads of their own: two or three of them for six heads."""

OTHERS_GROUPED = ((24, 6), (32, 4), (64, 8))

LARGEST_SIZE, MOST_SIZES, MOST_HEADS = 4096, 4, 6


@dataclass(frozen=True, eq=False)
class Candidate:
    """A runner, and E and H of its jobs; an alternative is tried where no other can be called."""

    runner: Runner
    size: tuple[int, int]
    alternative: bool = False


def sizes_for(target: object, size: tuple[int, int], stated: Stated) -> tuple[tuple[int, int], ...]:
    """E and H to try in turn: the given ones, and others where these are the default."""
    if size != DEFAULT or not isinstance(target, type) or not issubclass(target, nn.Module):
        return (size,)
    if "kv_heads" in counts(target, stated):
        return (GROUPED, *OTHERS_GROUPED)
    return (size, *OTHERS)


def candidates(
    target: object,
    name: str,
    size: tuple[int, int],
    stated: Stated,
    log: CallLog,
    callable_ones: Sequence[object] = (),
) -> Iterator[Candidate]:
    """Every way to read a target, the likely ones first.

    Alternatives are left out as soon as `callable_ones` holds something.

    Raises:
        BadFile: after the last one, if one could not be read; the message shows what to write.
        BadValue: if E is no multiple of H.
    """
    embed_dim, heads = size
    if heads < 1 or embed_dim < 1 or embed_dim % heads:
        raise BadValue(
            "embed_dim: expected a multiple of heads, got {embed_dim} with {heads} "
            "heads; use --embed-dim {example}",
            embed_dim=embed_dim,
            heads=heads,
            example=max(heads, 1) * 5,
        )
    if isinstance(target, type) and issubclass(target, nn.Module):
        yield from _of_class(target, name, size, stated, log, callable_ones)
    elif isinstance(target, nn.Module):
        yield from _of_instance(target, name, size, stated, log)
    else:
        yield from _of_function(target, name, size, log)


def _of_class(
    cls: type[nn.Module],
    name: str,
    size: tuple[int, int],
    stated: Stated,
    log: CallLog,
    callable_ones: Sequence[object],
) -> Iterator[Candidate]:
    counted = counts(cls, stated)
    found: list[Candidate] = []
    error: BadFile | None = None
    calls = constructions(cls, ConstructionSizes(*size, stated.kv_heads), stated)
    while True:
        try:
            construction = next(calls, None)
            if construction is None:
                break
            if construction.alternative and callable_ones:
                continue
            some = _of_construction(construction, name, stated, log, "heads" in counted)
            if "kv_heads" in counted:
                found += some
            else:
                yield from some
        except BadFile as raised:
            error = error or raised
    grouped = [c for c in found if 1 < (c.runner.groups or 0) < c.size[1]]
    yield from grouped or found
    if error is not None:
        raise error


def _of_construction(
    construction: Construction, name: str, stated: Stated, log: CallLog, counted: bool
) -> Iterator[Candidate]:
    """The candidates of one constructor call; without an argument for heads, also one head."""
    sizes = construction.sizes
    error: BadFile | None = None

    @cache
    def instance(dropout: float) -> nn.Module:
        return sized(construction.build(dropout), name, sizes.embed_dim)

    if not any(True for _ in instance(0.0).parameters()):
        size = (sizes.embed_dim, sizes.heads)
        plain = _plain(instance(0.0))
        for found in _of_function(plain, name, size, log, construction.alternative):
            if isinstance(found.runner, FunctionRunner):
                found = replace(found, runner=replace(found.runner, construction=construction))
            yield found
        return
    own = _sizes_of(instance(0.0), (sizes.embed_dim, sizes.heads), alone=not counted)
    for size in dict.fromkeys(((sizes.embed_dim, sizes.heads), *own)):
        try:
            named = "batch_first" in construction.arguments
            runner = of_module(instance, name, size, stated, batch_first=named)
        except BadFile as raised:
            error = error or raised
            continue
        runner = replace(runner, drops=construction.drops, log=log, construction=construction)
        if stated.kv_heads in (None, runner.groups or size[1]):
            yield Candidate(runner, size, construction.alternative)
        else:
            error = error or _other_groups(name, stated, runner.groups or size[1], size)
    if error is not None:
        raise error


def _other_groups(name: str, stated: Stated, own: int, size: tuple[int, int]) -> BadFile:
    return BadFile(
        "kv_heads: {name} has {own} key/value heads for {heads} heads, got {stated}; use "
        "--kv-heads {own}, or state its constructor's argument with --set",
        name=name,
        own=own,
        heads=size[1],
        stated=stated.kv_heads,
    )


def _of_instance(
    module: nn.Module, name: str, size: tuple[int, int], stated: Stated, log: CallLog
) -> Iterator[Candidate]:
    if not any(True for _ in module.parameters()):
        yield from _of_function(_plain(module), name, size, log)
        return
    sized(module, name, size[0])
    sizes = _sizes_of(module, size, alone=True)
    error: BadFile | None = None
    for own in sizes if size == DEFAULT else (size, *sizes):
        try:
            runner = of_module(lambda _p: module, name, own, stated)
        except BadFile as raised:
            error = error or raised
            continue
        if stated.kv_heads in (None, runner.groups or own[1]):
            yield Candidate(replace(runner, log=log), own)
        else:
            error = error or _other_groups(name, stated, runner.groups or own[1], own)
    if error is not None:
        raise error


def _sizes_of(
    module: nn.Module, size: tuple[int, int], *, alone: bool
) -> tuple[tuple[int, int], ...]:
    """E and H that a module may have, by its parameters and attributes, the likely ones first."""
    shapes = Counter(
        n for p in module.parameters() if p.dim() > 1 for n in p.shape if 1 < n <= LARGEST_SIZE
    )
    dims = [n for n, _ in shapes.most_common(MOST_SIZES)]
    dims = [size[0]] if size[0] in dims or not dims else dims
    named: list[int] = []
    for inner in module.modules():
        attributes = {n: v for n, v in vars(inner).items() if isinstance(v, int) and v > 0}
        named += [v for n, v in attributes.items() if _counts_heads(n)]
        lists = (child for child in inner.children() if isinstance(child, nn.ModuleList))
        named += [len(child) for child in lists]
    given = [size[1], 1] if alone else [size[1]] * (not named)
    heads = dict.fromkeys((*named, *given))
    pairs = ((e, h) for e in dims for h in heads if e % h == 0 and h < e)
    return tuple(pairs)[:MOST_HEADS]


def _counts_heads(name: str) -> bool:
    """Whether an attribute holds the number of query heads."""
    lower = name.lower()
    shared = re.search(r"kv|key|value|group|rep", lower)
    return lower in ("h", "nh") or (
        "head" in lower and not shared and not re.search("dim|size", lower)
    )


def _plain(module: nn.Module) -> Callable[..., object]:
    """A module without parameters as a function."""
    return module.eval().forward


def _of_function(
    target: object, name: str, size: tuple[int, int], log: CallLog, alternative: bool = False
) -> Iterator[Candidate]:
    if isinstance(target, type) or not callable(target):
        raise not_recognised(Text("{name} is neither a torch.nn.Module nor a function", name=name))
    function: Callable[..., object] = target
    if [p.name for p in parameters_of(function, name)][1:2] == ["weights"]:
        yield Candidate(AdapterRunner(function, log=log), size)
        return
    roles = [s for s in signatures(function, name) if len(s.tensors) == 3]
    if not roles:
        count = len(signatures(function, name)[0].tensors)
        reason = Text(
            "the function {name} takes {count} tensors, expected q, k, v", name=name, count=count
        )
        raise not_recognised(reason)
    yield Candidate(FunctionRunner(function, roles[0], log=log), size, alternative)


def with_groups(candidate: Candidate, stated: Stated) -> Candidate | None:
    """A function of q, k and v with fewer key/value heads than heads; None for anything else."""
    runner = candidate.runner
    if not isinstance(runner, FunctionRunner) or runner.shared is not None:
        return None
    size = GROUPED if candidate.size == DEFAULT else candidate.size
    divisors = [n for n in range(2, size[1]) if size[1] % n == 0]
    groups = stated.kv_heads or (divisors[-1] if divisors else None)
    return None if groups is None else Candidate(replace(runner, shared=groups), size)


def runner(
    target: object, name: str, embed_dim: int, heads: int, log: CallLog | None = None
) -> Runner:
    """The likeliest runner of a loaded target.

    Raises:
        BadFile: if it is not recognised; the message shows the adapter to write.
        BadValue: if embed_dim is no multiple of heads.
    """
    from headwise.verify.target.calls.guarded_call import no_log
    from headwise.verify.target.stated import NOTHING

    found = candidates(target, name, (embed_dim, heads), NOTHING, log or no_log)
    return next(found).runner
