"""Verify many targets in parallel, each in a separate process.

sources            finds the files that arguments, folders and patterns name
attention_search   finds the classes and functions of a file that are attention
journal            saves results, so that a killed run can be resumed
results            writes the table of all results, as CSV and as a document
"""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue, HeadwiseError
from headwise.lang import Text, joined, same
from headwise.verify.process import Limits, Request, Stopped, isolated, search
from headwise.verify.process.forbidden import resolve
from headwise.verify.report import Data, unusable
from headwise.verify.report.report_document import text_of
from headwise.verify.submissions.journal import Journal
from headwise.verify.submissions.results import Results
from headwise.verify.submissions.sources import expanded, is_file
from headwise.verify.target import NotRecognised, without_example

__all__ = ["Results", "verify_all"]

SEARCH_SECONDS = 60.0
"""The largest number of CPU seconds for the search of one file."""

MOST_HANGING = 4
"""The number of names that may end the search of a file before the search is abandoned."""

Progress = Callable[[int, int], None]


def verify_all(
    targets: Iterable[str | os.PathLike[str]],
    *,
    request: Request | None = None,
    limits: Limits | None = None,
    jobs: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Results:
    """Verify every attention in some files, each in a separate process.

    A target that hangs, crashes or does not load gets its own row and does not stop the run.

    Args:
        targets: ``file.py:Name``, ``package.Name``, files to search for attention, folders and
            patterns.
        request: the sizes, the seed and the forbidden names; its target is not used.
        limits: the limits of each target; default: `Limits()`.
        jobs: the number of targets that run at the same time; default: one per CPU.
        journal: a file to which every result is appended at once. Results of an earlier run are
            taken from it if the files, options and versions are unchanged.
        progress: called with the number of finished files and the number of all files.

    Raises:
        BadFile: if a file does not exist, or the journal cannot be written.
        BadValue: if `jobs` is less than 1, or a forbidden name cannot be imported.

    Example:
        >>> results = verify_all(["torch.nn.MultiheadAttention"])
        >>> [(report["target"], report["status"]) for report in results.reports]
        [('torch.nn.MultiheadAttention', 'accepted')]
    """
    if jobs is not None and jobs < 1:
        raise BadValue("jobs: expected 1 or more, got {jobs}", jobs=jobs)
    request = Request("") if request is None else request
    limits = Limits() if limits is None else limits
    for name in request.forbid:
        resolve(name)
    items = expanded(targets)
    kept = Journal(None if journal is None else Path(journal), request, limits)
    run = _Run(request, limits, kept)
    done: dict[str, _Item] = {}
    with ThreadPoolExecutor(jobs or available_cpus(), "headwise-verify") as pool:
        futures = {pool.submit(run.item, item): item for item in items}
        try:
            for future in as_completed(futures):
                done[futures[future]] = future.result()
                progress(len(done), len(items))
        except BaseException:
            run.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    ordered = [done[item] for item in items]
    searches = {name: found for name, (found, _) in zip(items, ordered, strict=True) if found}
    return Results(tuple(report for _, reports in ordered for report in reports), searches)


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_Item = tuple[Data | None, list[Data]]
"""The result of the search of a file, or None for a target, and the reports."""


@dataclass(frozen=True, eq=False)
class _Run:
    """One run of `verify_all`; the threads share it."""

    request: Request
    limits: Limits
    journal: Journal
    stop: threading.Event = field(default_factory=threading.Event)

    def item(self, item: str) -> _Item:
        """Report on a target, or on every attention in a file."""
        if not is_file(item):
            return None, [self.report(item)]
        found = self.journal.get("attentions", item, lambda: self.searched(item))
        if "failed" in found:
            return None, [found["failed"]]
        names = [*found["found"], *(one["name"] for one in found["refused"])]
        reports = [self.report(f"{item}:{name}") for name in names]
        reports += found["ended"]
        if not reports:
            reports = [_unusable(item, _nothing_found(item, found))]
        return found, reports

    def report(self, target: str) -> Data:
        """Report on one target, also if it has no verdict."""

        def make() -> Data:
            request = replace(self.request, target=target)
            try:
                return isolated(request, self.limits, cancelled=self.stop.is_set)
            except HeadwiseError as error:
                if self.stop.is_set():
                    raise
                return _unusable(target, error)

        return self.journal.get("report", target, make)

    def searched(self, file: str) -> Data:
        """Search a file for attention; return the result of `attentions`.

        `ended` adds the reports on the names that ended the search. If the file itself ended the
        search, `failed` holds the report on the file.
        """
        limits = replace(self.limits, seconds=min(self.limits.seconds, SEARCH_SECONDS))
        ended: dict[str, Data] = {}
        while True:
            tried: list[str] = []
            try:
                found = search(
                    Path(file),
                    self.request,
                    limits,
                    skip=tuple(ended),
                    progress=tried.append,
                    cancelled=self.stop.is_set,
                )
            except HeadwiseError as error:
                if self.stop.is_set():
                    raise
                if not isinstance(error, Stopped) or not tried or len(ended) == MOST_HANGING:
                    failed = _unusable(file, error)
                    return {"found": [], "refused": [], "others": [], "failed": failed}
                ended[tried[-1]] = _unusable(f"{file}:{tried[-1]}", error)
            else:
                return {**found, "ended": list(ended.values())}


def _unusable(target: str, error: HeadwiseError) -> Data:
    return unusable(target, without_example(error) if isinstance(error, NotRecognised) else error)


def _nothing_found(file: str, found: Data) -> BadFile:
    tried = [
        Text("{name}: {why}", name=item["name"], why=text_of(item["why"]))
        for item in found["others"][:4]
    ]
    return BadFile(
        "target: no attention was recognised in {file} ({tried}); give its name: {file}:Name",
        file=clean(file),
        tried=joined(same("; "), tried) if tried else Text("no class or function is defined in it"),
    )
