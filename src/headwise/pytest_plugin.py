"""The pytest plugin: ``pytest --headwise-verify package.module:Class`` adds one test per check.

The target runs once, in a separate process, when the first of its tests runs. A failed check shows
the diagnosis. The fixture ``headwise_verify`` is `headwise.verify.assert_attention`. If neither the
option nor the fixture is used, no other file of headwise is loaded.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

GROUP, VERDICT = "headwise", "verdict"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options of the plugin."""
    group = parser.getgroup(GROUP, "verification of attention by headwise")
    group.addoption(
        "--headwise-verify",
        action="append",
        default=[],
        metavar="TARGET",
        help="verify package.module:Class or path/to/file.py:Name, one test per check; can be "
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
        ("embed-dim", 15, "embedding size E for the tests, a multiple of the number of heads"),
        ("heads", 3, "number of heads H for the tests"),
        ("seed", 0, "seed of the inputs and weights"),
    ):
        group.addoption(
            f"--headwise-{name}", type=int, default=default, metavar="N", help=f"{text} [{default}]"
        )


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests of every target to the collected tests."""
    for name in config.getoption("headwise_verify"):
        target = target_name(name)
        items += session.genitems(TargetTests.from_parent(session, name=target, nodeid=target))


def target_name(name: str) -> str:
    """Convert ``package.module:Class`` to the dotted name that `headwise verify` accepts.

    Example:
        >>> [target_name(name) for name in ("torch.nn:MultiheadAttention", "mine.py:Attention")]
        ['torch.nn.MultiheadAttention', 'mine.py:Attention']
    """
    module, colon, attribute = name.rpartition(":")
    if not colon or module.endswith((".py", ".ipynb")):
        return name
    return f"{module}.{attribute}"


class TargetTests(pytest.Collector):
    """The tests of one target: one test per check, and one for the verdict."""

    def collect(self) -> Iterator[pytest.Item]:
        from headwise.verify.checks.contract import CONTRACT

        for name in (*(check.name for check in CONTRACT), VERDICT):
            yield CheckTest.from_parent(self, name=name)

    @cached_property
    def report(self) -> dict[str, Any]:
        """The report on the target; reading it the first time runs the target."""
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
    """Raised with the diagnosis of a failed check."""


class CheckTest(pytest.Item):
    """The test of one check of a target, or of its verdict."""

    parent: TargetTests

    def runtest(self) -> None:
        """Raise `CheckFailure` if the check fails; skip if the target does not support it."""
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
        """Show a diagnosis without a traceback, and any other exception as pytest does."""
        if isinstance(excinfo.value, CheckFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path | str, int | None, str]:
        """Return the file, the line and the name of the test."""
        from headwise.verify.report.annotations import place

        file, line = place({"target": self.parent.name})
        path = Path(file).resolve() if file else self.path
        return path, line - 1 if line else None, self.nodeid


def _diagnosis(report: dict[str, Any]) -> str:
    """Render the whole report as text."""
    from headwise.document import terminal
    from headwise.verify.report.report_document import document

    return terminal.render(document(report), color=False, width=100)


@pytest.fixture
def headwise_verify() -> Callable[..., None]:
    """Return a function that asserts that a target is multi-head attention.

    It takes a module class, a module or a function, and ``embed_dim``, ``heads`` and ``seed``.
    """
    from headwise.verify import assert_attention

    return assert_attention
