import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from headwise.cli import main
from headwise.cli.explain import FORMATS, INITS
from headwise.cli.reporting import SUFFIXES
from headwise.explain.trace import trace
from headwise.nn.init import INITS as KNOWN_INITS
from tests.browser import open_page


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in an empty folder and in English."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWISE_LANG", "en")
    return tmp_path


def run(capsys, *words):
    status = main(["explain", *words])
    out, err = capsys.readouterr()
    return status, out, err


def numbers(out, key, head=None):
    found = json.loads(out)["quantities"]
    return next(q["values"] for q in found if (q["key"], q["head"]) == (key, head))


def test_without_options_the_example_of_the_issue(capsys):
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert "我 [ 0.3760  0.4487  0.1752 ]" in out
    assert "s[0,0] = 0.5×0.5 + 1.1×1.1 = 1.4600" in out
    assert "\x1b" not in out


def test_the_acceptance_numbers_as_json(capsys):
    status, out, _ = run(capsys, "--format", "json")
    assert status == 0
    first = [round(v, 6) for v in numbers(out, "softmax", 1)[0]]
    assert first == [0.376037, 0.448749, 0.175215]
    assert [[round(v, 6) for v in row] for row in numbers(out, "output")] == [
        [0.847025, 0.872221, 0.200474, 0.233488],
        [0.873998, 0.843181, 0.200476, 0.234110],
        [0.986258, 0.498593, 0.198559, 0.237274],
    ]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_in_both_languages(capsys, kind, lang):
    status, out, _ = run(capsys, "--format", kind, "--lang", lang, "--precision", "6")
    assert status == 0
    assert "0.376037" in out
    if kind == "text":
        assert ("第 5 步" in out) == (lang == "zh")
        assert ("Step 5" in out) == (lang == "en")


@pytest.mark.parametrize("suffix", [s for s, kind in SUFFIXES.items() if kind in FORMATS])
def test_the_name_of_the_output_says_the_format(capsys, folder, suffix):
    status, out, err = run(capsys, "--output", f"a{suffix}")
    assert (status, out) == (0, "")
    assert err == f"written: a{suffix}\n"
    assert [path.name for path in folder.iterdir()] == [f"a{suffix}"]
    main(["explain", "--format", SUFFIXES[suffix]])
    assert (folder / f"a{suffix}").read_text(encoding="utf-8") == capsys.readouterr().out


def test_all_inputs_together(capsys):
    x = torch.randn(5, 6, dtype=torch.float64)
    bias = torch.randn(3, 5, 5, dtype=torch.float64)
    np.save("x.npy", x.numpy())
    np.save("b.npy", bias.numpy())
    module = torch.nn.MultiheadAttention(6, 3, dtype=torch.float64)
    save_file(module.state_dict(), "w.safetensors")
    words = ["--x", "x.npy", "--heads", "3", "--weights", "w.safetensors", "--mask", "window:1,2"]
    words += ["--bias", "b.npy", "--tokens", "a,b,c,d,e", "--format", "json"]
    status, out, _ = run(capsys, *words)
    assert status == 0
    i, j = torch.arange(5)[:, None], torch.arange(5)
    added = bias.masked_fill((j < i - 1) | (j > i + 2), -torch.inf)
    expected, per_head = module(x, x, x, attn_mask=added, average_attn_weights=False)
    from headwise.verify.oracle.tolerance import accept

    found = torch.tensor(numbers(out, "output"), dtype=torch.float64)
    accept(found, expected, expected)
    third = torch.tensor(numbers(out, "softmax", 3), dtype=torch.float64)
    accept(third, per_head[2], per_head[2])
    assert json.loads(out)["tokens"] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        ("full", lambda q, k: q + k >= 0),
        ("causal", lambda q, k: k <= q),
        ("window:0,1", lambda q, k: q <= k <= q + 1),
        ("m.csv", lambda q, k: (q + k) % 2 == 0),
    ],
)
def test_masks(capsys, folder, word, rule):
    rows = [[int((q + k) % 2 == 0) for k in range(3)] for q in range(3)]
    text = "\n".join(",".join(map(str, row)) for row in rows)
    (folder / "m.csv").write_text(text, encoding="utf-8")
    status, out, _ = run(capsys, "--mask", word, "--format", "json")
    assert status == 0
    shown = [[v is not None for v in row] for row in numbers(out, "masked", 1)]
    assert shown == [[rule(q, k) for k in range(3)] for q in range(3)]


def test_a_row_that_sees_nothing_is_zero(capsys, folder):
    (folder / "m.json").write_text("[[0, 0, 0], [1, 0, 0], [1, 1, 1]]", encoding="utf-8")
    status, out, _ = run(capsys, "--mask", "m.json", "--format", "json")
    assert status == 0
    assert numbers(out, "output")[0] == [0, 0, 0, 0]
    assert "Fully masked queries (0)" in run(capsys, "--mask", "m.json")[1]


def test_a_seed_repeats_and_an_init_alone_means_seed_zero(capsys):
    one, two = (run(capsys, "--seed", "0", "--init", "orthogonal")[1] for _ in range(2))
    assert one == two == run(capsys, "--init", "orthogonal")[1]
    assert run(capsys, "--seed", "0")[1] == run(capsys, "--init", "xavier_uniform")[1] != one
    assert INITS == KNOWN_INITS


def test_the_scale_and_one_head(capsys):
    status, out, _ = run(capsys, "--scale", "1", "--head", "2", "--format", "json")
    assert status == 0
    assert numbers(out, "scaled", 2) == numbers(out, "score", 2)
    assert {q["head"] for q in json.loads(out)["quantities"]} == {None, 2}


def test_cross_attention_with_a_position_and_weights_that_a_person_wrote(capsys, folder):
    (folder / "x.csv").write_text("a,1,−2\nb,1/2,50%\n", encoding="utf-16")
    (folder / "kv.md").write_text("X = [[1, 0, 2], [0, 1, 1], [3, 1, 0]]", encoding="utf-8")
    weights = "W_Q\n1,0\n0,1\nW_K\n1,0\n0,1\n1,1\nW_V\n1,0\n0,1\n1,1\n"
    (folder / "w.csv").write_text(weights, encoding="utf-8")
    words = ["--x", "x.csv", "--kv", "kv.md", "--key-tokens", "p,q,r", "--weights", "w.csv"]
    words += ["--heads", "1", "--position", "alibi", "--format", "json"]
    status, out, err = run(capsys, *words)
    assert status == 0
    assert err == "note: weights: the output projection W^O is missing; the identity is used\n"
    found = json.loads(out)
    assert (found["tokens"], found["key_tokens"]) == (["a", "b"], ["p", "q", "r"])
    assert numbers(out, "x") == [[1, -2], [0.5, 0.5]]
    assert numbers(out, "K") == [[3, 2], [1, 2], [3, 1]]
    assert numbers(out, "score", 1) == [[-1, -3, 1], [2.5, 1.5, 2]]
    slope = 2.0**-8
    distances = [[-slope * abs(j - i - 1) for j in range(3)] for i in range(2)]
    assert numbers(out, "position", 1) == distances
    assert found["formulas"]["masked"].count("P_h") == 1


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_header_is_said_to_be_one(capsys, folder, lang):
    (folder / "x.csv").write_text("p,q\n1,2\n3,4\n", encoding="utf-8")
    (folder / "m.csv").write_text("a,b\n1,0\n1,1\n", encoding="utf-8")
    words = ["--x", "x.csv", "--mask", "m.csv", "--lang", lang, "--format", "json"]
    status, _, err = run(capsys, *words)
    assert status == 0
    said = {"en": "is read as the header: p, q", "zh": "行当作表头，不是数据：p, q"}[lang]
    assert said in err
    assert err.count("\n") == 2


POSITIONS = ("sinusoidal", "rotary", "rotary:neighbours", "alibi", "shaw:shaw.csv", "t5:t5.csv")


@pytest.mark.parametrize("position", POSITIONS)
def test_every_position(capsys, folder, position):
    (folder / "shaw.csv").write_text("0,1\n1,0\n0,2\n", encoding="utf-8")
    rows = "\n".join(f"{bucket},{-bucket}" for bucket in range(32))
    (folder / "t5.csv").write_text(rows, encoding="utf-8")
    plain = run(capsys, "--format", "json")[1]
    status, out, err = run(capsys, "--position", position, "--format", "json")
    assert (status, err) == (0, "")
    assert numbers(out, "output") != numbers(plain, "output")
    if position == "shaw:shaw.csv":  # q · a of the distance, scaled
        expected = [[v * 2**-0.5 for v in row] for row in ([1.1, 1.0], [1.1, 2.2])]
        found = numbers(out, "position", 1)
        assert [round(v, 12) for v in (found[1][0], found[0][0])] == [
            round(v, 12) for v in (expected[0][0], expected[0][1] / 2)
        ]
    if position == "t5:t5.csv":
        assert numbers(out, "position", 2) == [[-0.0, -17, -18], [-1, -0.0, -17], [-2, -1, -0.0]]
    for kind in FORMATS:
        assert run(capsys, "--position", position, "--format", kind)[0] == 0


FILES = {
    "ragged.csv": b"1,2\n3\n",
    "nan.csv": b"1,2\nnan,3\n",
    "three.csv": b"1,2,3\n4,5,6\n",
    "words.md": b"no numbers here",
    "half.csv": b"1,0.5,1\n1,1,1\n1,1,1\n",
    "small.csv": b"1,0\n1,1\n",
    "ones.csv": b"1,0,0\n1,1,0\n1,1,1\n",
    "plus.json": b"[[0, 0, 0], [0, Infinity, 0], [0, 0, 0]]",
    "spaces.csv": b"1 2 3\n4 5 6\n",
    "bools.json": b"[[true, false]]",
    "junk.npy": b"\x80\x04K\x01.",
    "pickle.pt": b"\x80\x04K\x01.",
}

BAD = [
    (["--x", "missing.csv"], r"x: missing.csv: cannot open the file"),
    (["--x", "a.xlsx"], r"x: a.xlsx: unknown file extension '.xlsx'"),
    (["--x", "ragged.csv"], r"x: ragged.csv: expected 2 cells in line 2"),
    (["--x", "nan.csv"], r"x: nan.csv: .*nan in row 1, column 0"),
    (["--x", "junk.npy"], r"x: junk.npy: .*never unpickled"),
    (["--x", "three.csv"], r"heads: the 3 columns of . cannot be divided into 2 equal heads"),
    (
        ["--x", "three.csv", "--seed", "1"],
        r"heads: the 3 columns of x cannot be divided into 2 equal heads",
    ),
    (["--heads", "0"], r"--heads.*: 0 is not in the range x>=1"),
    (["--heads", "-1"], r"--heads.*: -1 is not in the range x>=1"),
    (["--heads", "two"], r"'two' is not a valid integer"),
    (["--tokens", "a,b"], r"tokens: expected 3 tokens, one for each row of x, got 2"),
    (["--weights", "pickle.pt"], r"weights: pickle.pt: .*never unpickled"),
    (["--weights", "none.safetensors"], r"weights: none.safetensors: cannot open the file"),
    (["--weights", "pickle.pt", "--seed", "1"], r"weights: expected a file or a seed, got both"),
    (["--seed", "-3"], r"seed: expected an integer from 0"),
    (["--init", "he"], r"'he' is not one of"),
    (["--mask", "diagonal"], r"mask: unknown value 'diagonal'; expected full, causal, window:LEFT"),
    (["--mask", "window:3"], r"mask: expected two integers after 'window:', got '3'"),
    (["--mask", "window:-1,0"], r"window: left must be >= 0, got -1"),
    (["--mask", "half.csv"], r"mask: half.csv: expected only the numbers 0 .* --bias"),
    (["--mask", "small.csv"], r"mask: small.csv: expected shape \(3, 3\), or \(2, 3, 3\)"),
    (["--bias", "ones.csv"], r"bias: ones.csv: .*only 0 and 1"),
    (["--bias", "plus.json"], r"bias: plus.json: .*got \+inf"),
    (["--bias", "three.csv"], r"bias: three.csv: expected shape \(3, 3\)"),
    (["--mask", "nan.csv"], r"mask: nan.csv: .*got nan"),
    (
        ["--position", "turned"],
        r"position: unknown value 'turned'; expected one of sinusoidal, rotary",
    ),
    (
        ["--position", "shaw:three.csv"],
        r"position: expected an odd number of rows .* 2 columns.*\(2, 3\)",
    ),
    (
        ["--position", "t5:three.csv"],
        r"position: expected one column for each of 2 heads, .*\(2, 3\)",
    ),
    (["--position", "rotary", "--heads", "4"], r"rotary_dim must be even"),
    (["--kv", "none.csv"], r"kv: none.csv: cannot open the file"),
    (["--kv", "three.csv"], r"weights: k must have shape \(4, 3\) for an input with 3 columns"),
    (["--key-tokens", "a,b"], r"key-tokens: expected --kv as well"),
    (["--kv", "small.csv", "--key-tokens", "a"], r"key-tokens: expected 2, one for each row"),
    (["--x", "half.csv:X"], r"x: half.csv:X: cannot open the file|unknown file extension"),
    (
        ["--x", "words.md"],
        r"x: words.md: expected an article that contains the array X, found 0 arrays",
    ),
    (["--weights", "words.md"], r"weights: words.md: .* no projections with known names"),
    (["--scale", "nan"], r"scale: expected a finite number"),
    (["--precision", "16"], r"precision: expected an integer from 0 to 15, got 16"),
    (["--precision", "-1", "--format", "json"], r"precision: expected an integer"),
    (["--head", "3"], r"head: expected an integer from 1 to 2, got 3"),
    (["--row", "3"], r"row: expected an integer from 0 to 2, got 3"),
    (["--row", "0", "--format", "json"], r"row: JSON contains every row"),
    (["--format", "pdf"], r"'pdf' is not one of"),
    (["--x", "spaces.csv"], r"x: spaces.csv: expected commas, .* got spaces in line 1: '1 2 3'"),
    (["--bias", "bools.json"], r"bias: bools.json: expected a number in row 0, column 0"),
    (["--output", "no/a.txt"], r"output: expected a file in an existing folder, got no/a.txt"),
    (["--colour"], r"No such option"),
]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(w) for w, _ in BAD])
def test_bad_input_is_one_line_and_writes_nothing(capsys, folder, words, message, lang):
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    extra = [] if "--output" in words else ["--output", "out.html"]
    status, out, err = run(capsys, *words, *extra, "--lang", lang)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith({"en": "error: ", "zh": "错误："}[lang])
    assert {path.name for path in folder.iterdir()} == set(FILES)
    if lang == "en":
        assert re.search(message, err)
    else:
        assert any("\u4e00" <= c <= "\u9fff" for c in err)


def test_a_hostile_token_stays_text(capsys, folder):
    evil = "</script><img src=x onerror=alert(1)>\x1b[31m"
    (folder / "t.json").write_text(json.dumps([evil, "b", "c"]), encoding="utf-8")
    _, out, _ = run(capsys, "--tokens", "t.json")
    assert "\x1b" not in out
    _, page, _ = run(capsys, "--tokens", "t.json", "--format", "html")
    assert "<img" not in page


def test_help_does_not_load_torch():
    code = (
        "import sys; from headwise.cli import main; status = main(['explain', '--help']); "
        "print('torch' in sys.modules, status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False 0"


def test_help_is_there_in_both_languages(capsys):
    assert main(["explain", "--help", "--lang", "zh"]) == 0
    zh = capsys.readouterr().out
    assert "逐项写出这一行的计算" in zh
    assert main(["explain", "--help", "--lang", "en"]) == 0
    assert "term by term" in capsys.readouterr().out


@pytest.mark.browser
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_opens_without_a_console_error(capsys, folder, lang):
    x = torch.randn(17, 6, dtype=torch.float64)
    np.save("x.npy", x.numpy())
    status, _, _ = run(capsys, "--x", "x.npy", "--mask", "causal", "--output", "a.html")
    assert status == 0
    dom, console = open_page(folder / "a.html", lang)
    assert console == []
    assert f'<html lang="{lang}"' in dom
    assert dom.count("<canvas") == 2
    exact = trace(x, 2).get("x")[0, 0].item()
    assert f"{exact:.4f}".replace("-", "−") in dom
