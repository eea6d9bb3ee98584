"""A corpus run: interrupted and resumed, rejected if it differs, distributed, and saved."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from headwise.document import terminal
from headwise.errors import BadFile, BadValue
from headwise.heads.analysis import similarity
from headwise.heads.analysis.similarity import is_comparable
from headwise.heads.corpus import accumulated, checkpoint, measurement, pipeline
from headwise.heads.corpus.accumulated import Gathered, Half
from headwise.heads.corpus.checkpoint import JSON, TENSORS, Run, open_run
from headwise.heads.corpus.corpus_report import report
from headwise.heads.corpus.measurement import Measurer
from headwise.heads.corpus.pipeline import CorpusJob, Options, Share, measure_corpus
from headwise.heads.corpus.readers import look_through
from headwise.heads.models.load import Loaded, load
from headwise.heads.names import Head, Layer
from headwise.heads.sums import MOST_NUMBERS, SUMS
from headwise.lang import Text
from tests.heads.tiny import HOSTILE, saved

LINES = (
    "the cat sat",
    "on a mat",
    "我 爱 你",
    "the mat",
    "cat cat cat cat",
    " ".join(HOSTILE),
    "a",
)
HERE = Path(__file__).parent
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def loaded(model: str) -> Loaded:
    return load(model)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "a.txt"
    file.write_text("\n".join(LINES), encoding="utf-8")
    return file


def tensors(run: Run) -> dict[str, torch.Tensor]:
    return run.gathered.tensors()


def assert_same(one: Run, other: Run) -> None:
    assert list(tensors(one)) == list(tensors(other))
    for name, each in tensors(one).items():
        assert torch.equal(each, tensors(other)[name]), name


def test_a_run_is_the_sum_of_its_documents(loaded: Loaded, corpus: Path) -> None:
    run = measure_corpus(loaded, corpus, Options())
    by_hand, naming = Gathered(), Measurer.of(loaded, truncate=False, names=True)
    for number, document in enumerate(look_through(corpus)):
        half = by_hand.first if number in (0, 2, 4, 6) else by_hand.second
        half.merge(naming.measure(document))
    for name, each in by_hand.tensors().items():
        assert torch.equal(each, tensors(run)[name]), name
    whole = run.gathered.whole()
    assert (whole.number("documents"), run.gathered.second.number("documents")) == (7, 3)
    assert whole.number("tokens") == sum(len(line.split()) + 2 for line in LINES)
    assert whole.number("cut") == 0
    assert whole.statistics.layers[next(iter(whole.statistics.layers))].queries == (
        whole.number("tokens")
    )


def test_killed_at_every_moment_it_ends_in_the_same_files(
    model: str, corpus: Path, tmp_path: Path
) -> None:
    """Before each document, before and after each file is put in its place or taken away."""
    corpus.write_text("\n".join(LINES[:3]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(HERE / "killed.py"), model, str(corpus), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=ALONE,
    )
    assert done.returncode == 0, done.stderr
    moments = json.loads(done.stdout)
    assert len(moments) == 3 + 2 * (3 + 3) + 2
    assert {each["ended"] for each in moments} == {-signal.SIGKILL}, moments
    assert [each["at"] for each in moments if not each["same"]] == []


@pytest.mark.slow
def test_the_command_killed_from_outside_goes_on(
    loaded: Loaded, model: str, tmp_path: Path
) -> None:
    file, folder = tmp_path / "a.txt", tmp_path / "run"
    file.write_text("\n".join(LINES * 12), encoding="utf-8")
    words = [sys.executable, "-m", "headwise", "inspect", model, "--corpus", str(file)]
    words += ["--save", str(folder), "--every", "0", "--format", "json"]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ALONE)
    part, until = folder / "part-0-of-1.safetensors", time.monotonic() + 120
    while not part.exists() and child.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(random.uniform(0.0, 0.3))  # noqa: S311
    child.kill()
    assert child.wait() == -signal.SIGKILL, "it was done before it could be killed"
    assert part.exists()
    subprocess.run(words, capture_output=True, check=True, env=ALONE)
    assert sorted(each.name for each in folder.iterdir()) == [JSON, TENSORS]
    assert_same(open_run(folder), measure_corpus(loaded, file, Options()))


def test_several_processes_agree_with_one_to_rounding(
    loaded: Loaded, model: str, corpus: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "headwise"),
        *("inspect", model, "--corpus", str(corpus), "--save", str(folder), "--format", "json"),
    ]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=ALONE
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["corpus"]["documents"] == len(LINES)
    assert sorted(each.name for each in folder.iterdir()) == [JSON, TENSORS]
    many, one = open_run(folder), measure_corpus(loaded, corpus, Options())
    naming = Measurer.of(loaded, truncate=False, names=True)
    documents = [naming.measure(each) for each in look_through(corpus)]
    assert set(tensors(many)) == set(tensors(one))
    for half, wanted in (("first", documents[0::2]), ("second", documents[1::2])):
        for name in wanted[0].tensors():
            _within_rounding(
                tensors(many)[f"{half}/{name}"],
                tensors(one)[f"{half}/{name}"],
                [each.tensors()[name] for each in wanted if name in each.tensors()],
            )


def _within_rounding(many: torch.Tensor, one: torch.Tensor, terms: list[torch.Tensor]) -> None:
    """Both sums of n terms are within n eps sum|x| of the exact one, in whatever order."""
    flat = [each.double().flatten().tolist() for each in terms]
    eps = Fraction(torch.finfo(torch.float64).eps)
    for place, (got, plain) in enumerate(
        zip(many.flatten().tolist(), one.flatten().tolist(), strict=True)
    ):
        exact = [Fraction(each[place]) for each in flat]
        bound = len(exact) * eps * sum(abs(each) for each in exact)
        assert abs(Fraction(got) - sum(exact)) <= bound
        assert abs(Fraction(plain) - sum(exact)) <= bound


def test_a_process_without_documents_is_no_harm(loaded: Loaded, corpus: Path) -> None:
    """Each share alone; what they have together is checked above with real processes."""
    shares = [Share(rank, 9) for rank in range(9)]
    assert sorted(number for share in shares for number in share.numbers(7)) == list(range(7))
    measurer, found = Measurer(loaded), look_through(corpus)
    parts = [pipeline.run(CorpusJob(measurer, found, share=share)) for share in shares]
    assert [part.whole().number("documents") for part in parts] == [1] * 7 + [0] * 2


def test_progress_is_told_from_where_it_goes_on(
    loaded: Loaded, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    seen: list[tuple[int, int]] = []

    def stop(done: int, whole: int) -> None:
        if done == 3:
            raise Stopped

    job = CorpusJob(Measurer(loaded), look_through(corpus), tmp_path, every=0)
    with pytest.raises(Stopped):
        pipeline.run(job, stop)
    pipeline.run(job, lambda done, whole: seen.append((done, whole)))
    assert seen == [(done, 7) for done in range(3, 8)]


def test_an_interrupt_loses_nothing(
    loaded: Loaded, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of a document, long before the next time to write."""
    real, calls = Measurer.measure, iter(range(99))

    def interrupted(self: Measurer, document: object) -> Half:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return real(self, document)  # type: ignore[arg-type]

    folder, said = tmp_path / "run", []
    monkeypatch.setattr(Measurer, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure_corpus(loaded, corpus, Options(folder, every=1e9))
    monkeypatch.setattr(Measurer, "measure", real)
    run = measure_corpus(
        loaded, corpus, Options(folder), progress=lambda done, _: said.append(done)
    )
    assert said[0] == 4
    assert_same(run, measure_corpus(loaded, corpus, Options()))


def test_a_finished_run_is_opened_and_not_run_again(
    loaded: Loaded, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = tmp_path / "new" / "run", list[Text]()
    first = measure_corpus(loaded, corpus, Options(folder))
    monkeypatch.setattr(Measurer, "measure", None)
    again = measure_corpus(loaded, corpus, Options(folder), tell=said.append)
    assert "the run is already finished" in said[-1].en
    assert_same(first, again)
    assert_same(first, open_run(folder))
    assert open_run(folder).model == first.model
    assert open_run(folder).corpus == first.corpus


def test_another_run_is_not_gone_on_with(loaded: Loaded, corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    measure_corpus(loaded, corpus, Options(folder))
    other = tmp_path / "b.txt"
    other.write_text("the cat", encoding="utf-8")
    wrong = (
        (other, Options(folder), "the corpus;"),
        (corpus, Options(folder, truncate=True), "--truncate;"),
        (corpus, Options(folder, paragraphs=True), "--paragraphs;"),
        (corpus, Options(folder, names=False), "--no-names;"),
    )
    for file, options, said in wrong:
        with pytest.raises(BadFile, match=f"save: the run in .* differs in {said}"):
            measure_corpus(loaded, file, options)
    changed = load(loaded.name)
    with torch.no_grad():
        next(iter(changed.model.parameters())).view(-1)[0] += 1
    with pytest.raises(BadFile, match="run differs in the model;"):
        measure_corpus(changed, corpus, Options(folder))


def test_a_model_is_the_same_whenever_it_is_loaded(loaded: Loaded, corpus: Path) -> None:
    """A pooler that its file lacks is random, and stands after all attention."""
    found = look_through(corpus)
    one, other = (
        CorpusJob(Measurer(each), found).identity() for each in (loaded, load(loaded.name))
    )
    assert any("pooler" in name for name in loaded.model.state_dict())
    assert one == other


def test_nor_is_another_that_was_interrupted(loaded: Loaded, corpus: Path, tmp_path: Path) -> None:
    found = look_through(corpus)
    pipeline.run(CorpusJob(Measurer(loaded), found, tmp_path))
    with pytest.raises(BadFile, match=r"differs in --truncate;"):
        pipeline.run(CorpusJob(Measurer(loaded, truncate=True), found, tmp_path))
    part = tmp_path / "part-0-of-1.safetensors"
    part.rename(tmp_path / "part-0-of-2.safetensors")
    with pytest.raises(BadFile, match="differs in the number of processes;"):
        pipeline.run(CorpusJob(Measurer(loaded), found, tmp_path, Share(0, 2)))


def test_a_document_that_cannot_be_read_is_named_before_any_is_run(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("the cat\n" + " ".join(["cat"] * 41), encoding="utf-8")
    monkeypatch.setattr(Measurer, "measure", None)
    with pytest.raises(BadFile, match=r"corpus: a\.txt:2: sentence: got 43 .*--truncate"):
        measure_corpus(loaded, file, Options(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    run = measure_corpus(loaded, file, Options(truncate=True))
    assert run.gathered.whole().number("cut") == 1
    assert run.gathered.second.number("tokens") == 37


def test_a_document_that_fails_is_named_and_the_others_are_kept(
    loaded: Loaded, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = measurement.run, iter(range(99))

    def failing(*given: object) -> None:
        if next(calls) == 6:  # each document is read by the model and by its random copy
            raise BadFile("model: it does not run")
        real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(measurement, "run", failing)
    with pytest.raises(BadFile, match=r"corpus: a\.txt:4: model: it does not run"):
        measure_corpus(loaded, corpus, Options(tmp_path / "run", every=1e9))
    monkeypatch.undo()
    seen: list[int] = []
    measure_corpus(
        loaded, corpus, Options(tmp_path / "run"), progress=lambda done, _: seen.append(done)
    )
    assert seen[0] == 3


def test_a_corpus_that_changes_meanwhile_is_refused(loaded: Loaded, corpus: Path) -> None:
    found = look_through(corpus)
    corpus.write_text("the cat", encoding="utf-8")
    with pytest.raises(BadFile, match=r"a\.txt was changed during the run; run again"):
        pipeline.run(CorpusJob(Measurer(loaded), found))


@pytest.mark.parametrize("below", ["", "run"])
def test_a_folder_that_cannot_be_made_is_refused(loaded: Loaded, corpus: Path, below: str) -> None:
    with pytest.raises(BadFile, match=r"save: cannot write into the folder .*a\.txt.*: Not a dir"):
        measure_corpus(loaded, corpus, Options(corpus / below))


def refused(*given: object, **named: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_may_not_be_written_is_refused_before_the_work(
    loaded: Loaded, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    folder = tmp_path / "run"
    if there:
        folder.mkdir()
    monkeypatch.setattr(Measurer, "measure", None)
    monkeypatch.setattr(Measurer, "check", None)
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(BadFile, match=r"save: cannot write into the folder .*run: Permission"):
        measure_corpus(loaded, corpus, Options(folder))
    assert folder.exists() == there


def test_a_finished_run_may_be_in_a_folder_that_is_only_read(
    loaded: Loaded, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = measure_corpus(loaded, corpus, Options(tmp_path / "run"))
    for name in ("TemporaryFile", "mkstemp"):
        monkeypatch.setattr(tempfile, name, refused)
    assert_same(first, measure_corpus(loaded, corpus, Options(tmp_path / "run")))


def test_a_disk_that_is_full_is_told_of_under_the_option_that_was_given(
    loaded: Loaded, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(BadFile, match=r"^save: cannot write .*: No space left") as caught:
        measure_corpus(loaded, corpus, Options(tmp_path / "run"))
    assert caught.value.text.zh.startswith("save：")


def test_sums_that_would_not_be_read_again_are_not_written(
    loaded: Loaded, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MOST_TENSOR_BYTES", 999)
    with pytest.raises(BadFile, match=r"save: the result has .* bytes, but at most 999"):
        measure_corpus(loaded, corpus, Options(tmp_path / "run"))
    assert list((tmp_path / "run").iterdir()) == []
    monkeypatch.undo()
    many = Gathered()
    for number in range(accumulated.MOST_NAMES + 1):
        many.first.evidence.syntax.sums.add(f"{number}/offsets", torch.zeros(1))
    with pytest.raises(BadValue, match=r"save: first/evidence/syntax has 65537 sums, but at most"):
        many.kept()


def test_heads_that_are_too_many_to_compare_are_measured_and_the_run_opens(
    loaded: Loaded, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six heads in two layers of three have 27 pairs, those of a layer with itself twice."""
    told = list[Text]()
    whole = measure_corpus(loaded, corpus, Options(tmp_path / "a"), tell=told.append)
    assert not any("not compared" in each.en for each in told)
    monkeypatch.setattr(similarity, "MOST_PAIRS", 26)
    few = measure_corpus(loaded, corpus, Options(tmp_path / "b"), tell=told.append)
    assert "heads are not compared with each other" in told[-1].en
    assert "未将头两两比较" in told[-1].zh
    left_out = {name for name in tensors(whole) if "/similarity/" in name}
    assert left_out
    assert set(tensors(few)) == set(tensors(whole)) - left_out
    again = open_run(tmp_path / "b")
    assert_same(few, again)
    assert "named redundant: heads are not compared" in terminal.render(report(again), "en")
    monkeypatch.setattr(similarity, "MOST_PAIRS", 27)
    assert "Heads are not compared" not in terminal.render(report(open_run(tmp_path / "a")), "en")


def test_what_the_limits_of_comparing_allow_can_be_read_again() -> None:
    """The largest part of a model that is compared, in layers of every size."""
    for each in (1, 2, 7, 40, 64, 128, 400, 1183):
        sizes = [each]
        while is_comparable(_heads([*sizes, each])):
            sizes.append(each)
        numbers = len(SUMS) * sum(a * b for n, a in enumerate(sizes) for b in sizes[n:])
        assert 8 * numbers * HALVES * MODELS * PARTS < checkpoint.MOST_TENSOR_BYTES
        assert len(SUMS) * each * each <= MOST_NUMBERS
        assert len(sizes) * (len(sizes) + 1) // 2 <= accumulated.MOST_NAMES
    assert is_comparable(_heads([40] * 40))
    assert not is_comparable(_heads([64] * 80))


HALVES, MODELS, PARTS = 2, 2, 3


def _heads(sizes: list[int]) -> list[Head]:
    return [Head(Layer("", n), number) for n, size in enumerate(sizes) for number in range(size)]
