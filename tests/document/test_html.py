import base64
import hashlib
import json
import math
import re
import sys
from html.parser import HTMLParser

import pytest

from headwise.document import (
    Document,
    Formula,
    Heading,
    HeatMap,
    Matrix,
    Notice,
    Paragraph,
    SideBySide,
    Working,
    html,
)
from headwise.document.html import fragment, pack, page, render
from headwise.errors import MissingExtra
from headwise.lang import Text, Translated, same
from tests.browser import open_page
from tests.document.attack import EMPTY, EVIL, everywhere


class Reader(HTMLParser):
    """Counts elements and keeps attributes and the text of scripts."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.elements, self.attributes, self.texts, self.open = [], [], {}, None
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs
        self.open = tag

    def handle_endtag(self, _tag):
        self.open = None

    def handle_data(self, data):
        self.texts.setdefault(self.open, []).append(data)


@pytest.mark.parametrize("text", EVIL)
def test_a_text_adds_no_element_and_no_handler(text):
    calm, loud = Reader(render(everywhere("calm"))), Reader(render(everywhere(text)))
    math_parts = {"math", "mrow", "mi", "mn", "mo", "msub", "msup", "mtext", "code", "span"}
    kept = [tag for tag in loud.elements if tag not in math_parts]
    assert kept == [tag for tag in calm.elements if tag not in math_parts]
    assert not [name for name, _ in loud.attributes if name.startswith("on") or name == "style"]
    assert not [name for name, _ in loud.attributes if name in ("src", "href")]


@pytest.mark.parametrize("text", EVIL)
def test_the_json_of_a_heat_map_is_strict_and_holds_no_bracket(text):
    source = render(everywhere(text))
    data = re.search(r'<script type="application/json">(.*?)</script>', source, re.DOTALL)[1]
    assert not set("<>&") & set(data)
    assert len(json.loads(data)["rows"]) == 2


def test_the_policy_allows_exactly_the_style_and_the_script_of_the_page():
    reader = Reader(render(everywhere("calm")))
    policy = next(value for name, value in reader.attributes if name == "content")
    for kind, source in (("style", reader.texts["style"]), ("script", reader.texts["script"][-1:])):
        digest = hashlib.sha256("".join(source).encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_both_languages_are_in_the_page_and_lang_says_which_opens():
    document = Document(Translated("title", "标题"), (Paragraph(Translated("one", "一")),))
    for lang in ("en", "zh"):
        source = render(document, lang)
        assert f'<html lang="{lang}"' in source
        assert '<span lang="en">one</span><span lang="zh">一</span>' in source


def test_fragments_stand_one_level_below_the_title_of_the_page():
    document = Document(same("part"), (Heading(same("step"), 2), Heading(same("head"), 3)))
    source = page(same("whole"), [fragment(document), fragment(document)], "zh")
    assert re.findall(r"<h(\d)>(\w+)", source) == [
        ("1", "whole"),
        *[("2", "part"), ("3", "step"), ("4", "head")] * 2,
    ]
    assert "http" not in source.replace("http-equiv", "").replace("http://www.w3.org/1998/", "")


def test_weights_are_warm_masked_ones_grey_and_the_row_in_question_marked():
    weights = Matrix(
        Formula("A", "A"), [[1.0, 0.0], [0.44, 0.56]], heat=True, masked=[[0, 1], [0, 0]], marked=1
    )
    source = render(Document(same("t"), (weights,)))
    cells = re.findall(r'<td class="([\w-]+)">([\d.]+)</td>', source)
    assert cells == [
        ("heat-10", "1.0000"),
        ("off", "0.0000"),
        ("heat-4", "0.4400"),
        ("heat-6", "0.5600"),
    ]
    assert source.count('<tr class="marked">') == 1


def test_matrices_side_by_side_and_a_wide_one_in_parts():
    small, wide = (Matrix(Formula("M", "M"), [[0.25] * size] * 2) for size in (2, 40))
    source = render(Document(same("t"), (SideBySide([small, small]), wide)))
    sides = source.split('<div class="side">')[1:]
    assert [part.count("<table>") for part in sides] == [2, 3]
    assert [text in sides[1] for text in ("columns 0 to 15", "第 32 到 39 列")] == [True, True]


def test_a_formula_stands_in_prose_and_a_long_one_can_be_broken():
    said = Text("with $d_k$ = {n}", n="$x$<b>")
    formula = Formula("", "a = 1 + 2")
    source = render(Document(same("t"), (Paragraph(said), Working([formula]))), "en")
    assert "with <math" in source
    assert "= $x$&lt;b&gt;" in source
    assert "d_k" not in source
    assert re.search(r"<li>.*?</li>", source)[0].count("<math") == 3


def test_weights_are_packed_by_their_root():
    levels = list(base64.b64decode(pack([[0.0, 1 / 254**2, 1.0, 2.0, -1.0, math.nan]])))
    assert levels == [0, 1, 254, 254, 0, 255]


def test_a_verdict_has_a_sign_and_not_colour_alone():
    source = render(Document(same("t"), (Notice(True, same("a")), Notice(False, same("b")))))
    assert "✓" in source
    assert "✗" in source


def test_empty_blocks_are_fine():
    assert "[ ]" in render(EMPTY)


@pytest.mark.parametrize("package", ["jinja2", "latex2mathml"])
def test_a_missing_package_says_how_to_install_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    html._templates.cache_clear()
    with pytest.raises(MissingExtra, match=r"headwise\[html\]"):
        render(everywhere("calm"))
    html._templates.cache_clear()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("point(1, 1)", "query 1 “b” → key 1 “d”: ≈ 0.25"),
        ("point(0, 1)", "query 0 “a” → key 1 “d”: not allowed"),
        ("press('ArrowDown'); press('ArrowDown')", "query 1 “b” → key 0 “c”: ≈ 1.0"),
        ("point(1, 1); click('zh')", "查询 1“b” → 键 1“d”：≈ 0.25"),
        ("click('zh'); click('en')", "rows are queries"),
    ],
)
def test_a_weight_can_be_read_by_mouse_and_keys_in_the_language_chosen(
    tmp_path, monkeypatch, act, said
):
    heat = HeatMap(same("m"), [[0.5, math.nan], [1.0, 0.25]], ["a", "b"], ["c", "d"])
    hands = """
    const canvas = document.querySelector("canvas");
    const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
    const click = (lang) => document.querySelector(`button[data-lang=${lang}]`).click();
    const point = (row, column) => {
      const box = canvas.getBoundingClientRect();
      const [clientX, clientY] = [box.right - 28 * (1.5 - column), box.bottom - 28 * (1.5 - row)];
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
    };
    """
    own = html._asset
    added = {"page.js": hands + act}
    monkeypatch.setattr(html, "_asset", lambda name: own(name) + added.get(name, ""))
    path = tmp_path / "page.html"
    path.write_text(render(Document(same("t"), (heat,))), encoding="utf-8")
    dom, console = open_page(path, "en")
    assert console == []
    assert said in re.search(r"<output[^>]*>(.*?)</output>", dom)[1]


@pytest.mark.browser
def test_a_script_that_is_not_the_pages_own_does_not_run(tmp_path):
    path = tmp_path / "page.html"
    attack = "<script>document.title = 'taken'</script>"
    source = render(Document(same("title"), ())).replace("</main>", f"{attack}</main>")
    path.write_text(source, encoding="utf-8")
    dom, console = open_page(path, "en")
    assert "<title>title</title>" in dom
    assert any("Content Security Policy" in line for line in console)


@pytest.mark.browser
@pytest.mark.parametrize(("lang", "other"), [("en", "zh"), ("zh", "en")])
def test_a_browser_opens_it_in_both_languages_without_an_error(tmp_path, lang, other):
    blocks = [block for text in EVIL for block in everywhere(text).blocks]
    names = [f"t{i}" for i in range(211)]
    large = HeatMap(same("large"), [[1 / 211] * 211] * 211, names, names)
    document = Document(Translated("title", "标题"), (*blocks, large))
    path = tmp_path / "page.html"
    path.write_text(render(document, other), encoding="utf-8")
    dom, console = open_page(path, lang)
    assert console == []
    assert f'<html lang="{lang}"' in dom
    assert f"<title>{document.title.to(lang)}</title>" in dom
    pressed = re.findall(r'data-lang="(\w+)"[^>]*aria-pressed="true"', dom)
    assert pressed == [lang]
    sizes = re.findall(r'<canvas[^>]*width="(\d+)"', dom)
    assert len(sizes) == len(EVIL) + 1
    assert all(int(size) > 0 for size in sizes)
    reading = {"en": "rows are queries", "zh": "行是查询"}[lang]
    assert dom.count(reading) >= len(sizes)
