"""The checks of the contract as tests that other projects run on their own attention.

``assert_attention`` is one assertion; ``conformance`` makes one pytest test from every check, as
scikit-learn's ``parametrize_with_checks`` does for estimators. Both run the target in the test
process; ``headwise verify`` runs the target in a separate process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from headwise.document import terminal
from headwise.errors import MissingExtra, one_of
from headwise.lang import Lang
from headwise.verify.checks import Check, Subject
from headwise.verify.checks.contract import CONTRACT
from headwise.verify.checks.mutation_testing import examine
from headwise.verify.diagnosis.verdict import DTYPE, verify
from headwise.verify.report import data
from headwise.verify.report.report_document import document
from headwise.verify.target.trials.discovery import discover

if TYPE_CHECKING:
    import pytest

WIDTH = 100


def assert_attention(
    target: object, *, embed_dim: int = 15, heads: int = 3, seed: int = 0, lang: Lang = "en"
) -> None:
    """Assert that a target is multi-head attention.

    Args:
        target: as in `headwise.verify.verify`: a module class, a module, a function of q, k and v
            (B, H, L, D), or an adapter.
        embed_dim: E, the embedding size for the tests.
        heads: H, the number of heads for the tests; must divide E.
        seed: the seed of the inputs and weights.
        lang: the language of the report.

    Raises:
        AssertionError: if the target is not accepted; the message is the whole report.
        BadFile: if the target is not recognised; the message shows the adapter to write.
        BadValue: if embed_dim is not a multiple of heads.

    Example:
        >>> import torch
        >>> assert_attention(torch.nn.MultiheadAttention)
    """
    report = verify(target, _name(target), embed_dim=embed_dim, heads=heads, seed=seed)
    if not report.accepted:
        whole = terminal.render(document(data(report)), lang, color=False, width=WIDTH)
        raise AssertionError(f"{_name(target)}\n{whole}")


@dataclass(frozen=True, eq=False)
class Test:
    """One check of one target; call the instance to run the check."""

    __test__ = False  # otherwise pytest would collect a class with this name

    check: Check
    name: str
    subject: Callable[[], Subject]

    def __call__(self) -> None:
        """Run the check.

        Raises:
            AssertionError: if the check fails; the message gives the error.
            pytest.skip.Exception: if the target does not support what the check needs.
        """
        finding = examine(self.check, self.subject(), DTYPE)
        if not finding.trials:
            _pytest().skip(f"{self.check.name}: the target does not support what the check needs")
        if not finding.passed:
            raise AssertionError(
                f"{self.name}: {self.check.name}: {self.check.question.en}: fails at "
                f"{finding.failed}; error / tolerance {finding.times:.3g}, error "
                f"{finding.roundings:.3g} rounding units; for a diagnosis, run headwise verify or "
                "call assert_attention"
            )


def _subject(target: object, name: str, size: tuple[int, int], seed: int) -> Subject:
    conventions = discover(target, name, size, seed)
    return conventions.subject(name, *conventions.size)


def conformance(
    *targets: object,
    embed_dim: int = 15,
    heads: int = 3,
    seed: int = 0,
    expected_failures: Mapping[str, str] | None = None,
) -> "pytest.MarkDecorator":
    """Return a decorator that runs a test function for every check of every target.

    Args:
        targets: one or more targets, as in `headwise.verify.verify`.
        embed_dim: E, the embedding size for the tests.
        heads: H, the number of heads for the tests; must divide E.
        seed: the seed of the inputs and weights.
        expected_failures: maps the name of a check to the reason why it fails; the test of that
            check is a strict xfail.

    Raises:
        MissingExtra: if pytest is not installed.
        BadValue: if expected_failures names an unknown check.

    Example:
        ```python
        from headwise.verify import conformance

        @conformance(MyAttention)
        def test_attention(check):
            check()
        ```
    """
    tool, names = _pytest(), {check.name for check in CONTRACT}
    expected = {} if expected_failures is None else dict(expected_failures)
    for name in expected:
        if name not in names:
            raise one_of("expected_failures", name, tuple(sorted(names)))
    tests = []
    for target in targets:
        name = _name(target)
        subject = cache(partial(_subject, target, name, (embed_dim, heads), seed))
        for check in CONTRACT:
            why = expected.get(check.name)
            marks = () if why is None else (tool.mark.xfail(reason=why, strict=True),)
            test = Test(check, name, subject)
            tests.append(tool.param(test, id=f"{name}-{check.name}", marks=marks))
    decorator: pytest.MarkDecorator = tool.mark.parametrize("check", tests)
    return decorator


def _name(target: object) -> str:
    return str(getattr(target, "__name__", type(target).__name__))


def _pytest() -> Any:
    try:
        import pytest
    except ImportError as error:
        raise MissingExtra.of("pytest", "dev") from error
    return pytest
