"""A saved run can be opened; a damaged file, a different file or a hostile file cannot."""

import itertools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as safetensors

from headwise.document import Table, html, terminal
from headwise.errors import BadFile
from headwise.heads.corpus import checkpoint
from headwise.heads.corpus.accumulated import Half
from headwise.heads.corpus.checkpoint import JSON, TENSORS, open_run, read_tensors, write_tensors
from headwise.heads.corpus.corpus_report import SCHEMA, as_json, report, run_table
from headwise.heads.corpus.pipeline import Options, measure_corpus
from headwise.heads.inspection_export import faults
from headwise.heads.metrics import MEASURED
from headwise.heads.models.load import Loaded
from headwise.heads.names import Head
from headwise.heads.naming import UNEXPLAINED, Named
from headwise.lang import LANGS, same
from tests.heads.tiny import bart, bert, tokenizer

Break = Callable[[Path], None]
Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs")
    file = folder / "a.txt"
    file.write_text("the cat\nsat on\n我 爱 你", encoding="utf-8")
    measure_corpus(Loaded("toy", "directory", bert(), tokenizer()), file, Options(folder / "run"))
    return folder / "run"


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(folder: Path, **entries: object) -> None:
    said = json.loads((folder / JSON).read_text())
    (folder / JSON).write_text(json.dumps({**said, **entries}))


def test_json_names_the_tensors_it_belongs_to(whole: Path) -> None:
    said = json.loads((whole / JSON).read_text())
    assert said["schema"] == "headwise.run/1"
    assert said["model"]["heads"] == 6
    assert said["corpus"]["documents"] == 3
    assert said["metrics"] == [metric.name for metric in MEASURED]
    assert said["tensors"] == {"file": TENSORS, "sha256": checkpoint.file_hash(whole / TENSORS)}


def test_what_it_says_as_json_keeps_to_the_schema(whole: Path) -> None:
    found = json.loads(as_json(open_run(whole)))
    assert faults(found) == []
    assert found["schema"] == SCHEMA == "headwise.inspect.corpus/1"
    assert found["corpus"]["tokens"] == 4 + 4 + 5
    assert [len(half) for half in found["halves"]] == [6, 6]
    assert faults({**found, "halves": 7})
    assert faults({name: each for name, each in found.items() if name != "alignment"})


@pytest.mark.parametrize("lang", LANGS)
def test_it_is_reported_without_the_model(whole: Path, lang) -> None:
    document = report(open_run(whole))
    written = terminal.render(document, lang)
    assert ("语料" in written) == (lang == "zh")
    assert "a.txt" in written
    labels = [str(r[0]) for b in document.blocks if isinstance(b, Table) for r in b.rows]
    assert "L1H2" in labels
    assert "truncated documents" not in labels


def named(head: str, name: str, value: float) -> Named:
    title = same(name)
    nan = float("nan")
    return Named(Head.parse(head), name, title, title, value, value, 0.5, 0.1, nan, nan, 9, 0.01)


def test_names_are_a_row_each_with_the_clearest_heads_first(whole: Path) -> None:
    run = open_run(whole)
    vars(run)["names"] = (
        named("L0H0", "local", 0.6),
        named("L0H1", "local", 0.9),
        named("L0H1", "redundant with L1H0", 0.8),
        named("L1H0", UNEXPLAINED, float("nan")),
        named("L1H1", "<b>syntax</b>", 0.7),
    )
    (table,) = [b for b in report(run).blocks if isinstance(b, Table) and str(b.head[1]) == "heads"]
    assert [[str(cell) for cell in row[:4]] for row in table.rows] == [
        ["local", "2", "L0H1 0.90, L0H0 0.60", "0.50"],
        ["redundant heads", "1", "L0H1~L1H0 0.80", "0.50"],
        ["<b>syntax</b>", "1", "L1H1 0.70", "0.50"],
    ]
    assert "3 of 6 heads have a name" in terminal.render(report(run), "en")
    assert "<b>syntax" not in html.render(report(run), "en")
    names = dict(zip(*(run_table(run)[column] for column in ("head", "names")), strict=True))
    assert names["L0H1"] == "local; redundant with L1H0"
    assert names["L0H2"] == ""
    found = json.loads(as_json(run))
    assert faults(found) == []
    assert found["names"][3]["second_half"] is None


def test_without_any_name_that_is_said(whole: Path) -> None:
    run = open_run(whole)
    vars(run)["names"] = (named("L0H0", UNEXPLAINED, float("nan")),)
    assert "0 of 6 heads have a name" in terminal.render(report(run), "en")


def test_one_document_suggests_and_tests_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("the cat")
    run = measure_corpus(Loaded("toy", "directory", bert(), tokenizer()), file, Options())
    assert run.names == ()


def test_what_was_cut_is_said(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(" ".join(["cat"] * 41))
    toy = Loaded("toy", "directory", bert(), tokenizer())
    run = measure_corpus(toy, file, Options(truncate=True))
    assert "truncated documents" in terminal.render(report(run), "en")


def test_three_kinds_of_attention_are_kept_apart(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "the cat sat", "target": "a mat"}\n{"text": "on"}')
    toy = Loaded("toy", "directory", bart(), tokenizer())
    run = measure_corpus(toy, file, Options(tmp_path / "run"))
    again = open_run(tmp_path / "run").gathered.whole().statistics
    assert again.heads() == run.gathered.whole().statistics.heads()
    assert {head.layer.part for head in again.heads()} == {"encoder", "decoder", "cross"}
    assert again.layers[Head.parse("decoder.L0H0").layer].queries == 4 + 3
    assert again.layers[Head.parse("encoder.L0H0").layer].queries == 5 + 3


def test_names_in_it_are_shown_and_not_obeyed(folder: Path) -> None:
    said = json.loads((folder / JSON).read_text())
    bad = "\x1b[31m</script><b>bold</b>"
    change(folder, model={**said["model"], "name": bad, "source": bad, "class": bad})
    run = open_run(folder)
    assert "\x1b" not in terminal.render(report(run), "en")
    assert "<b>bold" not in html.render(report(run), "en")
    assert as_json(run).isascii()


def other_tensors(folder: Path) -> None:
    tensors, said = read_tensors(folder / TENSORS)
    write_tensors(folder / TENSORS, {name: each * 2 for name, each in tensors.items()}, said)


def another(file: Path, make: Callable[[Path], None]) -> None:
    """Something else in the place of a file."""
    file.unlink()
    make(file)


def rehash(folder: Path) -> None:
    change(folder, tensors={"file": TENSORS, "sha256": checkpoint.file_hash(folder / TENSORS)})


def renamed(folder: Path) -> None:
    tensors, said = read_tensors(folder / TENSORS)
    write_tensors(folder / TENSORS, {f"x/{name}": each for name, each in tensors.items()}, said)
    rehash(folder)


def counted(folder: Path) -> None:
    tensors, said = read_tensors(folder / TENSORS)
    tensors["first/counts/apples"] = torch.zeros((), dtype=torch.float64)
    write_tensors(folder / TENSORS, tensors, said)
    rehash(folder)


def flattened(folder: Path) -> None:
    """Every sum becomes one number without axes."""
    tensors, said = read_tensors(folder / TENSORS)
    numbers = {name: tensor.sum().clone() for name, tensor in tensors.items()}
    write_tensors(folder / TENSORS, numbers, said)
    rehash(folder)


def unsaid(folder: Path) -> None:
    (folder / TENSORS).write_bytes(safetensors({"a": torch.zeros(2)}))
    rehash(folder)


def unordered(folder: Path) -> None:
    header = {"headwise": json.dumps({"schema": checkpoint.SCHEMA, "order": ["b"]})}
    (folder / TENSORS).write_bytes(safetensors({"a": torch.zeros(2)}, header))
    rehash(folder)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / JSON).unlink(), r"run\.json: No such file"),
        (lambda f: (f / JSON).write_bytes(b"\xff\x00"), r"run\.json is damaged"),
        (lambda f: (f / JSON).write_text("[" * 99999), r"run\.json is damaged"),
        (
            lambda f: (f / JSON).write_text(" " * (2 << 20)),
            r"run\.json: too large: more than 1,048,576 bytes",
        ),
        (lambda f: (f / JSON).write_text("7"), r"schema of run\.json is not headwise\.run/1"),
        (
            lambda f: change(f, schema="headwise.run/2"),
            r"schema of run\.json is not headwise\.run/1",
        ),
        (lambda f: change(f, model={}), r"run\.json lacks an entry of model"),
        (lambda f: change(f, corpus=None), r"run\.json lacks an entry of corpus"),
        (lambda f: change(f, tensors={"file": 7}), r"run\.json lacks an entry of tensors"),
        (lambda f: change(f, identity=[]), r"run\.json lacks an entry of identity"),
        (lambda f: change(f, metrics=["entropy"]), "measured with the metrics of another"),
        (lambda f: another(f / JSON, Path.mkdir), r"run\.json: not a file, but a directory, dev"),
        (lambda f: another(f / JSON, os.mkfifo), r"run\.json: not a file, but a directory, dev"),
        (lambda f: another(f / TENSORS, Path.mkdir), r"safetensors: not a file, but a directory,"),
        (lambda f: another(f / TENSORS, os.mkfifo), r"safetensors: not a file, but a directory,"),
        (lambda f: (f / TENSORS).unlink(), r"run\.safetensors: no such file"),
        (lambda f: (f / TENSORS).write_bytes(b""), "SafetensorError"),
        (lambda f: (f / TENSORS).write_bytes(b"\xff" * 999), "SafetensorError"),
        (other_tensors, r"run\.safetensors and run\.json do not belong together"),
        (renamed, "expected the name of a sum of a corpus run, got 'x/first"),
        (counted, "counts/apples is not the name of a sum"),
        (flattened, r"has shape \[\], not"),
        (unsaid, "JSONDecodeError"),
        (unordered, "its header does not list its tensors"),
    ],
)
def test_what_is_no_run_is_refused(folder: Path, damage: Break, said: str) -> None:
    damage(folder)
    with pytest.raises(BadFile, match=said) as caught:
        open_run(folder)
    start = f"open: expected a folder from --save, got {folder}: "
    assert str(caught.value).startswith(start)
    assert caught.value.text.zh.startswith(f"open：应为 --save 写出的文件夹，收到 {folder}：")


def test_every_number_of_a_description_is_held_to_what_it_can_be(folder: Path) -> None:
    whole = json.loads((folder / JSON).read_text())
    numbers = [
        (part, k) for part, entries in checkpoint.PARTS for k, kind in entries if kind is int
    ]
    assert ("corpus", "documents") in numbers

    def put(part: str, name: str, number: object) -> None:
        change(folder, **{**whole, part: {**whole[part], name: number}})

    for part, name in numbers:
        for number in (-1, 10**18, -(10**99), True, 1.5, float("nan"), None):
            put(part, name, number)
            with pytest.raises(BadFile, match=rf"{part}\.{name}: expected|lacks .* of {part}"):
                open_run(folder)
    for part, name, said in (
        ("model", "layers", "lists 3 layers, but run.safetensors has 2"),
        ("model", "heads", "lists 7 heads, but run.safetensors has 6"),
        ("corpus", "documents", "lists 4 documents, but run.safetensors has 3"),
    ):
        put(part, name, whole[part][name] + 1)
        with pytest.raises(BadFile, match=re.escape(said)):
            open_run(folder)


def names_of(tensors: dict[str, torch.Tensor]) -> list[str]:
    """One tensor of each kind, of the second half."""
    found = {re.sub(r"L\d+", "L", name): name for name in tensors if name.startswith("second")}
    return list(found.values())


def filled(value: float) -> Change:
    return lambda sums: torch.full_like(sums, value if sums.is_floating_point() else 7)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (filled(float("nan")), "contains NaN"),
        (filled(float("inf")), "contains a number that is too large"),
        (filled(1e308), "contains a number that is too large"),
        (lambda sums: sums.float(), "has torch.float32, not torch.float64"),
        (lambda sums: sums.bool(), "has torch.bool, not torch.float64"),
    ],
)
def test_every_sum_is_held_to_what_it_can_be(folder: Path, damage: Change, said: str) -> None:
    tensors, header = read_tensors(folder / TENSORS)
    for name in names_of(tensors):
        if tensors[name].dtype != torch.float64:
            continue
        write_tensors(folder / TENSORS, {**tensors, name: damage(tensors[name])}, header)
        rehash(folder)
        with pytest.raises(BadFile, match=rf"open: .*{re.escape(str(folder))}: .*{said}"):
            open_run(folder)


def shorter(sums: torch.Tensor) -> torch.Tensor:
    return sums[..., :1].contiguous() if sums.dim() else sums[None]


@pytest.mark.parametrize(
    "damage", [torch.neg, torch.zeros_like, filled(-1), filled(1e59), filled(0.5), shorter]
)
def test_what_opens_is_written_as_the_schema_says(folder: Path, damage: Change) -> None:
    """Whatever is done to the sums of one kind, of one half or of both, the run is refused in a
    word or reported in full."""
    tensors, header = read_tensors(folder / TENSORS)
    refused = set()
    for name, both in itertools.product(names_of(tensors), (False, True)):
        twin = name.replace("second", "first") if both else name
        damaged = {each: damage(tensors[each]) for each in (name, twin)}
        write_tensors(folder / TENSORS, {**tensors, **damaged}, header)
        rehash(folder)
        try:
            run = open_run(folder)
        except BadFile:
            refused.add(name)
            continue
        assert faults(json.loads(as_json(run))) == [], name
        report(run)
    if damage is torch.neg:
        assert {f"second/counts/{name}" for name in ("documents", "tokens")} <= refused
        wholes = {name for name in names_of(tensors) if "/below" in name or "similarity" in name}
        assert wholes
        assert wholes <= refused


def test_a_file_of_sums_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "MOST_TENSOR_BYTES", 99)
    with pytest.raises(BadFile, match=r"run\.safetensors: too large: more than 99 bytes"):
        open_run(folder)


def test_a_part_that_does_not_say_how_far_it_is_is_refused(tmp_path: Path) -> None:
    from headwise.heads.corpus.measurement import Measurer
    from headwise.heads.corpus.pipeline import CorpusJob, run
    from headwise.heads.corpus.readers import look_through

    file = tmp_path / "a.txt"
    file.write_text("the cat\nsat")
    toy = Loaded("toy", "directory", bert(), tokenizer())
    job = CorpusJob(Measurer(toy), look_through(file), tmp_path)
    part = tmp_path / "part-0-of-1.safetensors"
    same = job.identity()
    for said in ({"position": 1}, {"identity": same}, {"identity": same, "position": 3}):
        write_tensors(part, Half().tensors(), said)
        with pytest.raises(BadFile, match=r"save: .* lacks the position of the run; delete it"):
            run(job)
    part.write_bytes(b"half a fi")
    with pytest.raises(BadFile, match=r"SafetensorError.*delete it to start again"):
        run(job)


def test_safetensors_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from headwise.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    for work in (lambda: write_tensors(tmp_path / "a", {}, {}), lambda: read_tensors(tmp_path)):
        with pytest.raises(MissingExtra, match="safetensors"):
            work()
