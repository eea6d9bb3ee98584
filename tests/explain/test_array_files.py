import io
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from headwise.errors import BadFile, BadValue
from headwise.explain import array_files
from headwise.explain.array_files import InputFile, read_array, read_matrix, read_tokens
from headwise.explain.number_tables import NumberTable, from_text

VALUES = [[0.5, -1.25, 3e-5], [2.0, 0.0, 7.0]]


def npy(array, *, allow_pickle=False):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


GOOD = {
    "plain.csv": b"0.5,-1.25,3e-5\n2,0,7\n",
    "spaces.csv": b" 0.5 , -1.25 , 3e-5 \r\n\r\n2,0,7",
    "header.csv": b"a,b,c\n0.5,-1.25,3e-5\n2,0,7\n",
    "semicolon.csv": b"0.5;-1.25;3e-5\n2;0;7\n",
    "bom.csv": b"\xef\xbb\xbf0.5,-1.25,3e-5\n2,0,7\n",
    "tab.tsv": b"0.5\t-1.25\t3e-5\n2\t0\t7\n",
    "list.json": json.dumps(VALUES).encode(),
    "dict.json": json.dumps({"x": VALUES}).encode(),
    "double.npy": npy(np.array(VALUES)),
    "fortran.npy": npy(np.asfortranarray(VALUES)),
    "bigendian.npy": npy(np.array(VALUES, dtype=">f8")),
    "one.safetensors": save({"x": torch.tensor(VALUES, dtype=torch.float64)}),
}


@pytest.mark.parametrize("name", GOOD)
def test_each_type_gives_the_same_numbers(tmp_path, name):
    (tmp_path / name).write_bytes(GOOD[name])
    found = read_matrix(str(tmp_path / name))
    assert found.values.tolist() == VALUES
    assert found.values.dtype == torch.float64
    assert found.tokens is None


ROW = [-0.5, 0.5, 0.5, 1000.5]
WRITTEN = '−0.5,50%,1/2,"1,000.5"'


@pytest.mark.parametrize("written", [WRITTEN, "－0.5,５０％,2/4,1000.5", "-.5,50 %, 1 / 2 ,1000.5"])
@pytest.mark.parametrize("below", ["0,0,0,0", WRITTEN])
def test_a_first_row_in_other_signs_is_no_header(written, below):
    table = from_text(f"{written}\n{below}\n")
    assert table.header is None
    assert table.rows[0] == ROW


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "gb18030", "utf-16-le"])
def test_a_table_in_another_encoding(tmp_path, encoding):
    content = "词,p,q\r\n我们,1,2\r\n喜欢,3,4\r\n"
    (tmp_path / "x.csv").write_bytes(content.encode(encoding))
    notes = []
    found = read_matrix(str(tmp_path / "x.csv"), notify=notes.append)
    assert (found.tokens, found.values.tolist()) == (("我们", "喜欢"), [[1, 2], [3, 4]])
    assert [note.en.split(": ", 2)[2] for note in notes] == [
        "line 1 is read as the header: 词, p, q"
    ]


def test_a_header_is_never_dropped_in_silence(tmp_path):
    notes = []
    (tmp_path / "x.csv").write_text("\ndim_0,dim_1\n1,2\n", encoding="utf-8")
    assert read_matrix(str(tmp_path / "x.csv"), notify=notes.append).values.tolist() == [[1, 2]]
    assert [note.en for note in notes] == [
        f"x: {tmp_path / 'x.csv'}: line 2 is read as the header: dim_0, dim_1"
    ]
    (tmp_path / "x.csv").write_text("1,2\n3,4\n", encoding="utf-8")
    read_matrix(str(tmp_path / "x.csv"), notify=notes.append)
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "我,1,2\n爱,3,4"),
        ("b.csv", "token,p,q\n我,1,2\n爱,3,4"),
        ("c.csv", '词,p,q\n"我",1,2\n爱,3,4'),
        ("d.tsv", "我\t1\t2\n爱\t3\t4"),
        ("e.json", '{"tokens": ["我", "爱"], "x": [[1, 2], [3, 4]]}'),
    ],
)
def test_tokens_come_with_the_numbers(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    found = read_matrix(str(tmp_path / name))
    assert found.tokens == ("我", "爱")
    assert found.values.tolist() == [[1, 2], [3, 4]]


def test_a_table_that_pandas_wrote_has_its_index_as_tokens():
    assert from_text(",0,1\n0,5,6\n1,7,8") == NumberTable(
        [[5.0, 6.0], [7.0, 8.0]], ("0", "1"), ("", "0", "1")
    )


@given(st.lists(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_a_written_table_is_read_back_exactly(rows):
    text = "\n".join(",".join(map(repr, row)) for row in rows)
    assert from_text(text) == NumberTable(rows)


@given(st.text(max_size=60))
def test_any_text_is_numbers_or_one_clear_error(text):
    try:
        table = from_text(text)
    except BadFile:
        return  # any other error fails this test
    assert len({len(row) for row in table.rows}) == 1
    assert table.tokens is None or len(table.tokens) == len(table.rows)


BAD = {
    "a.xlsx": (b"x", r"unknown file extension '.xlsx'; expected one of .csv, .tsv, .npy"),
    "noname": (b"x", r"unknown file extension \(none\)"),
    "empty.csv": (b"", r"expected at least one row of numbers, got an empty table"),
    "blank.csv": (b"\n , \n", r"expected at least one row"),
    "header.csv": (b"a,b\n", r"expected rows of numbers below the header, got only the header"),
    "ragged.csv": (b"1,2\n\n3\n", r"expected 2 cells in line 3, as in the first row, got 1"),
    "word.csv": (b"1,2\n3,x\n", r"number in line 2, column 2 \(both counted from 1\), got 'x'"),
    "half.csv": (b"1,2\nx,3\n", r"number in line 2, column 1 \(both counted from 1\), got 'x'"),
    "spaces.csv": (b"1 2.5\n3 4\n", r"expected commas.*, got spaces in line 1: '1 2.5'; separate"),
    "titled.csv": (b"a b c\n1 2 3\n", r"expected commas.*, got spaces in line 2: '1 2 3'"),
    "spaces.tsv": (b"1 2\n3 4\n", r"expected commas, semicolons or tabs .* got spaces in line 1"),
    "comma.csv": (b"0,5;1\n2;3,5\n", r"expected decimal points, got decimal commas in line 1"),
    "words.csv": ("我;0,5;1\n爱;2;3\n".encode(), r"points, got decimal commas in line 1: '我;0,5"),
    "comma.tsv": (b"0,5\t1\n2\t3,5\n", r"got decimal commas in line 1: .*; write 0.5 for 0,5"),
    "long.csv": (b"1 2" + b" 3" * 9000, r"at least one number|expected rows of numbers"),
    "nan.csv": (b"1,2\n3,nan\n", r"finite numbers, got nan in row 1, column 1"),
    "inf.csv": (b"-inf,2\n", r"finite numbers, got -inf in row 0, column 0"),
    "binary.csv": (bytes(range(256)), r"expected text in UTF-8, UTF-16, GB18030"),
    "signs.csv": ("−1,2\n3,4x\n".encode(), r"number in line 2, column 2 .* got '4x'"),
    "first.csv": (b"1.2.3,0.5.1\n3,4\n", r"number in line 1, column 1 .* got '1.2.3'"),
    "thousand.csv": (b'"1,000",2\n3,4\n', r"number in line 1, column 1 .* got '1,000'"),
    "zero.csv": (b"1/0,2\n3,4\n", r"number in line 1, column 1 .* got '1/0'"),
    "onlywords.csv": (
        "我\n爱\n".encode(),
        r"expected an array with 2 axes and at least one number",
    ),
    "broken.json": (b"[[1,\n", r"invalid JSON in line 2, column 1"),
    "deep.json": (b"[" * 200_000, r"cannot read the JSON|invalid JSON"),
    "long.json": (b"[[" + b"1" * 5000 + b"]]", r"cannot read the JSON"),
    "huge.json": (b"[[1" + b"0" * 400 + b"]]", r"number in row 0, column 0"),
    "scalar.json": (b"1", r"expected a list of rows"),
    "flat.json": (b"[1, 2]", r"expected a list of rows"),
    "empty.json": (
        b"[]",
        r"expected an array with 2 axes and at least one number, got shape \(0,\)",
    ),
    "ragged.json": (b"[[1, 2], [3]]", r"expected 2 cells in row 1, as in the first row, got 1"),
    "bool.json": (b"[[true]]", r"number in row 0, column 0 \(both counted from 0\), got True"),
    "text.json": (b'[["1"]]', r"number in row 0, column 0"),
    "nan.json": (b"[[NaN]]", r"finite numbers, got nan"),
    "noname.json": (b'{"y": [[1]]}', r'with the numbers under "x"'),
    "junk.npy": (b"\x93NUMPY\x01\x00garbage", r"damaged file or Python objects"),
    "text.npy": (b"hello", r"damaged file or Python objects"),
    "object.npy": (
        npy(np.array([[1, "a"]], dtype=object), allow_pickle=True),
        r"Python objects, which are never unpickled",
    ),
    "header.npy": (
        npy(np.ones((5, 7))).replace(b"(5, 7)", b"((((((", 1),
        r"damaged file or Python objects",
    ),
    "short.npy": (npy(np.ones((5, 7)))[:-9], r"damaged file"),
    "text_array.npy": (npy(np.array([["a"]])), r"expected real numbers, got dtype <U1"),
    "complex.npy": (npy(np.array([[1j]])), r"expected real numbers, got dtype complex128"),
    "cube.npy": (
        npy(np.ones((2, 3, 5))),
        r"expected an array with 2 axes .* got shape \(2, 3, 5\)",
    ),
    "vector.npy": (npy(np.ones(3)), r"expected an array with 2 axes"),
    "none.npy": (
        npy(np.ones((0, 3))),
        r"expected an array with 2 axes and at least one number|damaged",
    ),
    "nan.npy": (npy(np.array([[1.0, np.nan]])), r"got nan in row 0, column 1"),
    "junk.safetensors": (b"\xff" * 40, r"cannot read safetensors file"),
    "two.safetensors": (
        save({"a": torch.ones(2, 3), "b": torch.ones(2, 3)}),
        r"the name of one of 2 tensors in the file \(a, b\), got ''; write two.safetensors:NAME",
    ),
    "complex.safetensors": (
        save({"a": torch.ones(2, 3, dtype=torch.complex64)}),
        r"expected real numbers, got dtype torch.complex64",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_each_fault_is_one_clear_error_in_both_languages(tmp_path, name):
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile, match=message) as caught:
        read_matrix(str(tmp_path / name))
    text = caught.value.text
    for line in (text.en, text.zh):
        assert line.startswith("x")
        assert name in line
        assert line.isprintable()
    assert any("\u4e00" <= c <= "\u9fff" for c in text.zh)


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(BadFile, match=r"cannot open the file: No such file or directory"):
        read_matrix(str(tmp_path / "missing.csv"))
    with pytest.raises(BadFile, match=r"expected a file, got a directory"):
        read_matrix(str(tmp_path / "folder.csv"))
    with pytest.raises(BadFile, match=r"x: a␛\[31m.csv: cannot open the file"):
        read_matrix("a\x1b[31m.csv")


def test_sizes_are_bounded(tmp_path, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_text("1,2,3\n4,5,6\n", encoding="utf-8")
    monkeypatch.setattr(array_files, "MOST_NUMBERS", 5)
    with pytest.raises(BadFile, match=r"expected at most 5 numbers, got 6"):
        read_matrix(str(path))
    monkeypatch.setattr(array_files, "MOST_BYTES", 11)
    with pytest.raises(BadFile, match=r"expected at most 11 bytes, got 12"):
        read_matrix(str(path))


def test_a_header_that_promises_more_than_the_file_holds_allocates_nothing(tmp_path):
    path = tmp_path / "x.npy"
    header = io.BytesIO()
    promised = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**6)}
    np.lib.format.write_array_header_1_0(header, promised)
    path.write_bytes(header.getvalue() + bytes(100))
    with pytest.raises(BadFile, match=r"damaged"):
        read_matrix(str(path))


def test_a_tensor_is_picked_by_name(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(save({"a.b": torch.ones(2, 3), "c": torch.zeros(5, 7).bfloat16()}))
    assert read_matrix(f"{path}:c").values.shape == (5, 7)
    with pytest.raises(BadFile, match=r"of 2 tensors in the file \(a.b, c\), got 'd'"):
        read_matrix(f"{path}:d")


def test_a_bias_may_hold_minus_infinity_and_three_axes(tmp_path):
    path = tmp_path / "b.npy"
    path.write_bytes(npy(np.full((2, 3, 3), -np.inf)))
    file = InputFile.parse("bias", str(path))
    assert read_array(file, (2, 3), finite=False).values.shape == (2, 3, 3)
    with pytest.raises(BadFile, match=r"bias: .*finite numbers, got -inf"), file.errors():
        read_array(file, (2, 3))


@pytest.mark.parametrize(
    ("name", "content", "tokens"),
    [("t.json", '["我", "a,b"]', ("我", "a,b")), ("t.txt", "我\nb c\n", ("我", "b c"))],
)
def test_tokens_come_from_a_file(tmp_path, name, content, tokens):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_tokens(str(tmp_path / name)) == tokens


def test_tokens_come_from_the_command_line():
    assert read_tokens("我,爱,，") == ("我", "爱", "，")
    with pytest.raises(BadValue, match=r"tokens: token 1 \(counted from 0\) is not valid Unicode"):
        read_tokens("a,\udcff")


@pytest.mark.parametrize("content", ['{"a": 1}', "[1, 2]", '"ab"'])
def test_tokens_that_are_no_list_of_texts_are_refused(tmp_path, content):
    (tmp_path / "t.json").write_text(content, encoding="utf-8")
    with pytest.raises(BadFile, match=r"tokens: .*expected a list of strings"):
        read_tokens(str(tmp_path / "t.json"))
