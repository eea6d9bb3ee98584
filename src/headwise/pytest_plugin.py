"""The pytest plugin: ``pytest --headwise-verify package.module:Class`` is one test for each check.

The target runs once, in a process of its own, when the first of its tests runs. A check that fails
shows the diagnosis. The fixture ``headwise_verify`` is `headwise.verify.assert_attention`. Unless
one of them is used, nothing but this file is loaded.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

GROUP, VERDICT = "headwise", "verdict"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup(GROUP, "verification of attention by headwise")
    group.addoption(
        "--headwise-verify",
        action="append",
        default=[],
        metavar="TARGET",
        help="verify package.module:Class or path/to/file.py:Name, one test for each check; may be "
        "given several times",
    )
    group.addoption(
        "--headwise-forbid",
        action="append",
        default=[],
        metavar="NAME",
        help="a class or function that the targets may not use",
    )
    for name, default, text in (
        ("embed-dim", 15, "E to try the targets with, a multiple of the heads"),
        ("heads", 3, "H to try them with"),
        ("seed", 0, "of inputs and weights"),
    ):
        group.addoption(
            f"--headwise-{name}", type=int, default=default, metavar="N", help=f"{text} [{default}]"
        )


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests of every target to those that were collected."""
    for name in config.getoption("headwise_verify"):
        target = target_name(name)
        items += session.genitems(TargetTests.from_parent(session, name=target, nodeid=target))


def target_name(name: str) -> str:
    """A target as `headwise verify` takes it; ``package.module:Class`` becomes a dotted name.

    Example:
        >>> [target_name(name) for name in ("torch.nn:MultiheadAttention", "mine.py:Attention")]
        ['torch.nn.MultiheadAttention', 'mine.py:Attention']
    """
    module, colon, attribute = name.rpartition(":")
    if not colon or module.endswith((".py", ".ipynb")):
        return name
    return f"{module}.{attribute}"


class TargetTests(pytest.Collector):
    """The tests of one target: one for each check, and one for the verdict."""

    def collect(self) -> Iterator[pytest.Item]:
        from headwise.verify.checks.contract import CONTRACT

        for name in (*(check.name for check in CONTRACT), VERDICT):
            yield CheckTest.from_parent(self, name=name)

    @cached_property
    def report(self) -> dict[str, Any]:
        """The report on the target, which is run when it is first read."""
        from headwise.errors import HeadwiseError
        from headwise.verify import Request
        from headwise.verify.process import isolated
        from headwise.verify.report import unusable

        option = self.config.getoption
        request = Request(
            self.name,
            embed_dim=option("headwise_embed_dim"),
            heads=option("headwise_heads"),
            seed=option("headwise_seed"),
            forbid=tuple(option("headwise_forbid")),
        )
        try:
            return isolated(request)
        except HeadwiseError as error:
            return unusable(self.name, error)


class CheckFailure(Exception):
    """The diagnosis of a check that failed."""


class CheckTest(pytest.Item):
    """One check of a target, or its verdict."""

    parent: TargetTests

    def runtest(self) -> None:
        """Raise `CheckFailure` where the check fails; skip where the target does not support it."""
        report = self.parent.report
        if self.name == VERDICT:
            if not report["accepted"]:
                raise CheckFailure(_diagnosis(report))
            return
        finding = next((c for c in report.get("checks", ()) if c["check"] == self.name), None)
        if finding is None:
            pytest.skip(f"there is no report; see {self.parent.nodeid}::{VERDICT}")
        if not finding["passed"]:
            from headwise.verify.report.report_document import failure_text

            raise CheckFailure(failure_text(finding, report).en)
        if not finding["trials"]:
            pytest.skip("the target does not support what the check needs")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The diagnosis without a traceback; anything else as pytest shows it."""
        if isinstance(excinfo.value, CheckFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path | str, int | None, str]:
        """The file and the line of the target."""
        from headwise.verify.report.annotations import place

        file, line = place({"target": self.parent.name})
        path = Path(file).resolve() if file else self.path
        return path, line - 1 if line else None, self.nodeid


def _diagnosis(report: dict[str, Any]) -> str:
    """The whole report as text."""
    from headwise.document import terminal
    from headwise.verify.report.report_document import document

    return terminal.render(document(report), color=False, width=100)


@pytest.fixture
def headwise_verify() -> Callable[..., None]:
    """A function that asserts that something is multi-head attention.

    It takes a class of modules, a module or a function, and ``embed_dim``, ``heads`` and ``seed``.
    """
    from headwise.verify import assert_attention

    return assert_attention
