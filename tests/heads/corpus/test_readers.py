"""The formats of a corpus, and every error in them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headwise.errors import BadFile
from headwise.heads.corpus.documents import MOST_BYTES, CorpusDocument, Entity, Parse
from headwise.heads.corpus.readers import READERS, look_through, reader
from tests.heads.tiny import HOSTILE

Put = Callable[[str, str | bytes], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(name: str, content: str | bytes) -> Path:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    return write


def read(file: Path, **how: bool) -> list[CorpusDocument]:
    return list(look_through(file, **how))


def sentence(*rows: str, text: str | None = None) -> str:
    """A sentence in CoNLL-U from rows of number, form, head, relation and what else is said."""
    made = []
    for row in rows:
        number, form, head, relation, misc = (*row.split(), "_")[:5]
        made.append("\t".join([number, form, *["_"] * 4, head, relation, "_", misc]))
    comments = ["# sent_id = 1"] if text is None else ["# sent_id = 1", f"# text = {text}"]
    return "\n".join([*comments, *made, "", ""])


def test_a_line_of_plain_text_is_a_document(put: Put) -> None:
    found = read(put("a.txt", "\ufeffthe cat\r\n\n  \n sat on \n我爱你"))
    assert [(each.name, each.text) for each in found] == [
        ("a.txt:1", "the cat"),
        ("a.txt:4", "sat on"),
        ("a.txt:5", "我爱你"),
    ]


def test_or_a_paragraph_is(put: Put) -> None:
    found = read(put("a.txt", "\nthe cat\nsat\n \non a\n\n\nmat\n"), paragraphs=True)
    assert [(each.name, each.text) for each in found] == [
        ("a.txt:2", "the cat\nsat"),
        ("a.txt:5", "on a"),
        ("a.txt:8", "mat"),
    ]


def test_json_lines_say_what_they_know(put: Put) -> None:
    whole = {
        "text": "the  cat sat",
        "words": ["the", "cat", "sat"],
        "heads": [1, 2, -1],
        "relations": ["det", "nsubj", "root"],
        "entities": [[0, 2, "ANIMAL"]],
        "target": "die Katze",
        "alignment": [[0, 0], [1, 1]],
        "author": {"of": ["no", "interest"]},
    }
    spans = {"text": "我爱你", "words": [[0, 1], [1, 2], [2, 2], [2, 3]]}
    lines = "\n".join(json.dumps(each) for each in (whole, {"text": "cat"}, spans))
    assert read(put("a.jsonl", lines)) == [
        CorpusDocument(
            "a.jsonl:1",
            "the  cat sat",
            ((0, 3), (5, 8), (9, 12)),
            Parse((1, 2, -1), ("det", "nsubj", "root")),
            (Entity(0, 2, "ANIMAL"),),
            "die Katze",
            ((0, 0), (1, 1)),
        ),
        CorpusDocument("a.jsonl:2", "cat"),
        CorpusDocument("a.jsonl:3", "我爱你", ((0, 1), (1, 2), (2, 2), (2, 3))),
    ]


def test_conllu_gives_words_and_their_parse(put: Put) -> None:
    rows = ("1 the 2 det", "2 cat 3 nsubj", "3 sat 0 root SpaceAfter=No", "4 . 3 punct")
    first, second = read(put("a.conllu", sentence(*rows, text="the cat sat.") + sentence(*rows)))
    assert first == CorpusDocument(
        "a.conllu:1",
        "the cat sat.",
        ((0, 3), (4, 7), (8, 11), (11, 12)),
        Parse((1, 2, -1, 2), ("det", "nsubj", "root", "punct")),
    )
    assert (second.name, second.text) == ("a.conllu:8", "the cat sat.")


def test_a_token_of_several_words_is_divided_among_them(put: Put) -> None:
    rows = (
        "1-2 don't _ _", "1 do 2 aux", "2 n't 0 root",
        "3-4 du _ _ SpaceAfter=No", "3 de 2 case", "4 le 2 det",
        "4.1 seen _ _", "5 , 2 punct",
    )  # fmt: skip
    (found,) = read(put("a.conllu", sentence(*rows)))
    assert found.text == "don't du,"
    assert found.words == ((0, 2), (2, 5), (6, 8), (8, 8), (8, 9))
    assert found.parse is not None
    assert found.parse.heads == (1, -1, 1, 1, 1)


def test_a_sentence_nobody_parsed_has_words_alone(put: Put) -> None:
    (found,) = read(put("a.conllu", "# newdoc\n\n" + sentence("1 the _ _", "2 cat _ _")))
    assert found.parse is None
    assert found.words == ((0, 3), (4, 7))


def test_tokens_that_are_markup_are_text(put: Put) -> None:
    text = " ".join(HOSTILE)
    (found,) = read(put("a.jsonl", json.dumps({"text": text, "words": list(HOSTILE)})))
    assert [found.text[start:stop] for start, stop in found.words] == list(HOSTILE)
    assert read(put("a.txt", text))[0].text == text


def test_a_corpus_knows_its_size_and_can_be_read_again(put: Put) -> None:
    file = put("a.txt", "the\ncat\n")
    seen: list[CorpusDocument] = []
    corpus = look_through(file, check=seen.append)
    assert corpus.documents == 2
    assert list(corpus) == seen == list(corpus)
    assert corpus.sha256 == look_through(put("b.txt", "the\ncat\n")).sha256
    assert corpus.sha256 != look_through(put("b.txt", "the\ncat")).sha256


def test_what_a_check_finds_is_said_before_the_work_begins(put: Put) -> None:
    def refuse(document: CorpusDocument) -> None:
        raise BadFile("corpus: {name} is not for us", name=document.name)

    with pytest.raises(BadFile, match=r"a\.txt:1 is not for us"):
        look_through(put("a.txt", "the\ncat\n"), check=refuse)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "", r"a\.txt has no document"),
        ("a.txt", "\n \n\t\n", r"a\.txt has no document"),
        ("a.jsonl", "\n", r"a\.jsonl has no document"),
        ("a.conllu", "# text = nothing\n\n", r"a\.conllu has no document"),
        ("a.pdf", "x", r"expected the file extension \.txt, \.jsonl, \.conllu, got a\.pdf"),
        ("a", "x", r"expected the file extension \.txt, \.jsonl, \.conllu, got a"),
        ("a.txt", b"the cat\n\x00\x01\x02", r"a\.txt:2: expected text, got a zero byte"),
        ("a.txt", b"the cat\nsat \xff", r"a\.txt:2: expected UTF-8, got byte 0xff in column 5"),
        ("a.txt", "the".encode("utf-16"), r"a\.txt:1: expected text, got a zero byte"),
        ("a.jsonl", "{}\x00", r"a\.jsonl:1: expected text, got a zero byte"),
        ("a.jsonl", '{"text": "a"}\n{"text": ', r"a\.jsonl:2: expected JSON, got an error in col"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl:1: expected JSON without deep"),
        ("a.jsonl", '{"a": ' + "1" * 5000 + "}", r"a\.jsonl:1: expected JSON without deep"),
        ("a.jsonl", '["text"]', r"a\.jsonl:1: expected an object, got array"),
        ("a.jsonl", "null", r"a\.jsonl:1: expected an object, got null"),
        ("a.jsonl", "{}", r"a\.jsonl:1: text: expected some text, got none"),
        ("a.jsonl", '{"text": " "}', r"a\.jsonl:1: text: expected some text, got none"),
        ("a.jsonl", '{"text": 7}', r"a\.jsonl:1: text: expected a string, got number"),
        ("a.jsonl", r'{"text": "a\ud800"}', r"a\.jsonl:1: text: expected whole characters"),
    ],
)  # fmt: skip
def test_what_is_no_corpus_is_refused(put: Put, name: str, content: str | bytes, said: str) -> None:
    with pytest.raises(BadFile, match=said) as caught:
        look_through(put(name, content))
    assert caught.value.text.zh.startswith("corpus：")


def about(**more: object) -> str:
    return json.dumps({"text": "the cat sat", "words": ["the", "cat", "sat"], **more})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (about(words=["the", "dog", "sat"]), r"word 2 is 'dog', but the text continues with 'c"),
        (about(words=["the", "", "cat"]), "word 2 is ''"),
        (about(words=["the", "cat"]), "the text continues with 'sat' after the last wo"),
        (about(words="the"), "words: expected a list, got string"),
        (about(words=[[0, 3], "cat"]), r"words: expected entries of the form .* entry 2 di"),
        (about(words=[[0, True]]), "words: expected entries of the form"),
        (about(words=[[0, 3], [2, 5]]), r"word 2: expected .* between 3 and 11, got \[2, 5"),
        (about(words=[[0, 99]]), r"word 1: expected .* between 0 and 11, got \[0, 99"),
        (about(words=[[-1, 2]]), r"word 1: .* got \[-1, 2"),
        (about(heads=[1, 2]), "relations: expected a list of strings; a parse nee"),
        (about(relations=["det"]), "heads: expected a list of integers; a parse needs"),
        (about(heads=[1, 2, True], relations=["a"] * 3), "heads: expected a list of integ"),
        (about(heads=[1, -1], relations=["a"] * 2), "heads: expected one entry for each of the 3"),
        (about(heads=[1, 2, -1], relations=["a"]), "relations: expected one entry for each of"),
        (about(heads=[1, 2, 3], relations=["a"] * 3), ".* got 3 for the word with index 2"),
        (about(heads=[0, 2, -1], relations=["a"] * 3), ".* got 0 for the word with index 0"),
        (about(heads=[-2, 2, -1], relations=["a"] * 3), ".* got -2 for the word with index 0"),
        (about(heads=[1, 2, -1], relations=["a", "", "b"]), "relations: expected names of 1 to"),
        (about(entities=[[0, 4, "A"]]), r"entities: .* within 3 words, got \[0, 4\]"),
        (about(entities=[[1, 1, "A"]]), r"entities: .* within 3 words, got \[1, 1\]"),
        (about(entities=[[0, 1, "A" * 101]]), "entities: expected names of 1 to 100"),
        (about(entities=[[0, 1]]), "entities: expected entries of the form"),
        (about(entities={"a": 1}), "entities: expected a list, got object"),
        (about(alignment=[[0, -1]]), r"alignment: expected token .* got \[0, -1"),
        (about(alignment=[[0, 1.0]]), "alignment: expected entries of the form"),
        (about(target=False), "target: expected a string, got boolean"),
    ],
)  # fmt: skip
def test_what_cannot_be_true_of_a_text_is_refused(put: Put, line: str, said: str) -> None:
    with pytest.raises(BadFile, match=rf"a\.jsonl:2: {said}"):
        look_through(put("a.jsonl", '{"text": "a"}\n' + line))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("1\tthe\n", "a.conllu:1: expected 10 columns separated by tabs, got 2"),
        (sentence("1 the 0 root", "3 cat 1 det"), "a.conllu:3: expected word number 2, got '3'"),
        (sentence("0 the 0 root"), "a.conllu:2: expected word number 1, got '0'"),
        (sentence("x the 0 root"), "a.conllu:2: expected word number 1, got 'x'"),
        (sentence("2-3 the _ _"), "a.conllu:2: expected word number 1, got '2-3'"),
        (sentence("1-2 a _ _", "1-2 b _ _"), "a.conllu:3: expected word number 1, got '1-2'"),
        (sentence("1-3 a _ _", "1 a 0 root"), "a token covers word 3, but the sentence has 1 wo"),
        (sentence("1 the 0 root", text="a cat"), "word 1 is 'the', but the text continues with 'a"),
        (sentence("1 a 0 root", text="a cat"), "the text continues with 'cat' after the last w"),
        (sentence("1 a 2 det"), "word 1: expected head 0 for the root .* got '2'"),
        (sentence("1 a 0 root", "2 b _ det"), ":3: word 2: expected head 0 .* got '_'"),
        (sentence("1 a -1 root"), "word 1: expected head 0 for the root .* got '-1'"),
        (sentence(f"1 a 0 {'r' * 101}"), "relations: expected names of 1 to 100 characters"),
    ],
)
def test_what_is_no_conllu_is_refused(put: Put, content: str, said: str) -> None:
    with pytest.raises(BadFile, match=said):
        look_through(put("a.conllu", content))


ROWS = ("1-2 don't _ _", "1 do 2 aux", "2 n't 0 root", "2.1 seen _ _", "3 go 2 xcomp")


@pytest.mark.parametrize(
    ("row", "wrong", "said"),
    [
        (1, "1 do 4 aux", "word 1: expected head 0 for the root .* got '4'"),
        (2, "2 n't 2 root", "word 2: expected head 0 for the root .* got '2'"),
        (4, "3 go 999999 xcomp", "word 3: expected head 0 .* from 1 to 3, got '999999'"),
        (4, "3 go x xcomp", "word 3: expected head 0 for the root .* got 'x'"),
        (4, "3 go _ xcomp", "word 3: expected head 0 for the root .* got '_'"),
        (4, f"3 go 2 {'x' * 101}", "relations: expected names of 1 to 100 characters"),
        (4, "3 went 2 xcomp", "word 3 is 'went', but the text continues with 'go'"),
        (0, "1-2 does _ _", "word 1-2 is 'does', but the text continues with \"don't"),
        (4, "3-4 go _ _", "a token covers word 4, but the sentence has 2 wo"),
        (4, "4 go 2 xcomp", "expected word number 3, got '4'"),
    ],
)
def test_conllu_is_wrong_in_its_own_line_and_numbers(
    put: Put, row: int, wrong: str, said: str
) -> None:
    """In the second sentence, whose comments and whose token of two words have lines as well."""
    good = sentence(*ROWS, text="don't go")
    bad = sentence(*(wrong if each == row else old for each, old in enumerate(ROWS)))
    bad = bad.replace("# sent_id = 1", "# sent_id = 2\n# text = don't go")
    line = good.count("\n") + 2 + row + 1
    with pytest.raises(BadFile, match=rf"a\.conllu:{line}: {said}") as caught:
        look_through(put("a.conllu", good + bad))
    assert f"a.conllu:{line}：" in caught.value.text.zh
    message = caught.value.text.zh.replace(str(caught.value.text.values["where"]), "")
    assert "-1" not in message


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.conllu"])
def test_a_line_of_a_hundred_megabytes_is_not_held(put: Put, name: str) -> None:
    import tracemalloc

    file = put(name, b"")
    with file.open("wb") as stream:
        for _ in range(100):
            stream.write(b"a" * 1_000_000)
    tracemalloc.start()
    with pytest.raises(BadFile, match=rf"{name}:1: expected at most 1,048,576 bytes in a line"):
        look_through(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MOST_BYTES


def test_documents_of_many_lines_are_bounded_too(put: Put) -> None:
    many = "a" * 999 + "\n"
    with pytest.raises(BadFile, match=r"a\.txt:1: expected at most .* in a paragraph"):
        look_through(put("a.txt", many * 1100), paragraphs=True)
    with pytest.raises(BadFile, match=r"a\.conllu:1: expected at most .* in a sentence"):
        look_through(put("a.conllu", ("# " + many) * 1100))


def test_only_files_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "a.txt"
    with pytest.raises(BadFile, match=r"corpus: cannot read .*a\.txt: No such file"):
        look_through(folder)
    folder.mkdir()
    with pytest.raises(BadFile, match=r"corpus: expected a file, got .*a\.txt, a directory"):
        look_through(folder)


def test_only_plain_text_has_paragraphs(put: Put) -> None:
    with pytest.raises(BadFile, match=r"extension \.txt, got a\.jsonl; --paragraphs needs plain"):
        look_through(put("a.jsonl", "{}"), paragraphs=True)


def test_every_reader_has_an_end_of_its_own() -> None:
    ends = [suffix for suffix, _ in READERS]
    assert len(set(ends)) == len(ends)
    for suffix, read in READERS:
        assert reader(Path(f"A{suffix.upper()}")) is read
