"""A target whose conventions are known, at another size; and its parameters without effect."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from headwise.lang import Text
from headwise.positions import ALiBi, Position, Rotary
from headwise.verify.oracle.jobs import self_job
from headwise.verify.target import NotRecognised, not_recognised
from headwise.verify.target.construction.candidates import candidates
from headwise.verify.target.construction.construct import counts
from headwise.verify.target.conventions import Conventions, Runner
from headwise.verify.target.module_runner import ModuleRunner


def at_size(
    target: object, name: str, conventions: Conventions, size: tuple[int, int]
) -> Conventions | None:
    """The target constructed for E and H; None where it cannot have them."""
    if isinstance(target, nn.Module) and size != conventions.size:
        return None
    try:
        found = candidates(target, name, size, conventions.stated, conventions.runner.log)
        for candidate in found:
            for variant in candidate.runner.variants:
                if candidate.size == size and _read_alike(variant, conventions.runner):
                    position = _for_size(conventions.position, size)
                    return replace(conventions, runner=variant, size=size, position=position)
    except Exception:
        return None
    return None


def has_heads(target: object, conventions: Conventions) -> bool:
    """Whether a class is constructed for the number of heads that it is read with.

    Its constructor has an argument for them, or an attribute of the module holds their number.
    """
    runner, heads = conventions.runner, conventions.size[1]
    if conventions.stated.arguments or heads == 1:
        return False
    if not isinstance(target, type) or not isinstance(runner, ModuleRunner):
        return not isinstance(target, nn.Module)
    if "heads" in counts(target, conventions.stated):
        return True
    modules = runner.make(0.0).modules()
    return any(
        value == heads
        for inner in modules
        for value in vars(inner).values()
        if isinstance(value, int)
    )


def _for_size(position: Position | None, size: tuple[int, int]) -> Position | None:
    """A position for another D and H."""
    if isinstance(position, Rotary):
        return Rotary(size[0] // size[1], pairs=position.pairs)
    return ALiBi(size[1]) if isinstance(position, ALiBi) else position


def _read_alike(runner: Runner, other: Runner) -> bool:
    """Whether two runners of one target are read by the same conventions."""
    if not isinstance(runner, ModuleRunner) or not isinstance(other, ModuleRunner):
        return _reading(runner) == _reading(other)
    mine, its = runner.binding, other.binding
    return (
        (runner.axes, runner.residual) == (other.axes, other.residual)
        and runner.signature == other.signature
        and (mine.layout, mine.interleaved) == (its.layout, its.interleaved)
        and runner.angles == other.angles
        and mine.places.keys() == its.places.keys()
        and [(s.name, s.transposed) for s in mine.slots]
        == [(s.name, s.transposed) for s in its.slots]
    )


def _reading(runner: Runner) -> tuple[object, ...]:
    names = ("signature", "arrays", "order", "axes")
    return (type(runner), *(getattr(runner, name, None) for name in names))


def beyond_definition(conventions: Conventions) -> NotRecognised | None:
    """Why a target is more than the definition of attention, or None where it is not.

    It has parameters beside the projections that change its output.
    """
    runner = conventions.runner
    if not isinstance(runner, ModuleRunner):
        return None
    module = runner.make(0.0)
    names = [*runner.binding.unplaced, *(name for name, _ in runner.binding.zeroed)]
    names = [name for name in names if not name.startswith(tuple(f"{n}." for n in runner.norms))]
    acting = [name for name in names if _acts(conventions, runner, module, name)]
    if not acting:
        return None
    reason = Text(
        "it has parameters beside the projections, {names}, which the definition of attention "
        "does not",
        names=", ".join(acting),
    )
    return not_recognised(reason)


def _acts(conventions: Conventions, runner: ModuleRunner, module: nn.Module, name: str) -> bool:
    try:
        return not torch.equal(*_outputs(conventions, runner, module, name))
    except Exception:
        return True


def unused_parameters(conventions: Conventions) -> tuple[str, ...]:
    """The parameters beside the projections that have no effect on the output.

    A norm that is bypassed, a number alone, and what a convention sets are left out.
    """
    runner = conventions.runner
    if not isinstance(runner, ModuleRunner) or runner.signature.optional:
        return ()
    module = runner.make(0.0)
    names = [*runner.binding.unplaced, *(name for name, _ in runner.binding.zeroed)]
    return tuple(name for name in names if _dead(conventions, runner, module, name))


def _dead(conventions: Conventions, runner: ModuleRunner, module: nn.Module, name: str) -> bool:
    own = module.get_parameter(name)
    bypassed = any(name.startswith(f"{path}.") for path in runner.norms)
    if bypassed or own.numel() < 2 or not own.is_floating_point():
        return False
    return not _acts(conventions, runner, module, name)


def _outputs(
    conventions: Conventions, runner: ModuleRunner, module: nn.Module, name: str
) -> Iterator[Tensor]:
    """The outputs for two values of a parameter."""
    job = self_job(*conventions.size).fitted(runner.lacks, runner.groups)
    job = replace(job, mask=conventions.base)
    masks, own = conventions.masks(job) or {}, module.get_parameter(name).detach()
    laid = runner.binding.lay(job.weights, job.heads)
    draw = torch.Generator().manual_seed(8)
    for value in (own, torch.randn(own.shape, generator=draw)):
        yield runner.called(module.eval(), {**laid, name: value}, job, masks).output.detach()
