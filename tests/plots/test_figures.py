"""The figures: their content, their language, and that a font contains every character."""

import math
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

from headwise.errors import BadFile, BadValue, MissingExtra
from headwise.heads.ablation.curve import Point
from headwise.heads.ablation.loss_effects import Interval
from headwise.heads.corpus.pipeline import Options, measure_corpus
from headwise.heads.inspection import Inspection, inspect
from headwise.heads.metrics import METRICS
from headwise.heads.metrics.distances import BY_DISTANCE
from headwise.heads.models.load import Loaded
from headwise.lang import LANGS, Lang, Translated, same
from headwise.plots import album
from headwise.plots.curves import UNSEEN, Curve, Removal, ablation, profile
from headwise.plots.figure import PLAIN, Fonts, Sheet, save
from headwise.plots.heat_maps import heat_map, panels, similarity
from tests.heads.tiny import HOSTILE, bart, bert, gpt2, tokenizer

pytest.importorskip("matplotlib")

SENTENCE = "the cat sat on a mat"
PNG = b"\x89PNG\r\n\x1a\n"


def sheet(lang: Lang = "en") -> Sheet:
    try:
        return Sheet.of(lang)
    except BadValue as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def seen() -> Inspection:
    return inspect(Loaded("toy", "directory", bert(), tokenizer()), SENTENCE, heads="all")


@pytest.mark.parametrize("lang", LANGS)
def test_an_inspection_becomes_png_and_svg(seen: Inspection, tmp_path: Path, lang: Lang) -> None:
    files = album.write(album.of_inspection(sheet(lang), seen), tmp_path / "new")
    heads = [f"map-L{layer}H{head}" for layer in range(2) for head in range(3)]
    names = ["overview", "distance", *heads, "similarity"]
    assert [file.name for file in files] == [f"{n}.{end}" for n in names for end in ("png", "svg")]
    for file in files:
        content = file.read_bytes()
        assert content.startswith(PNG if file.suffix == ".png" else b"<?xml")


def test_the_same_figure_has_the_same_bytes(seen: Inspection, tmp_path: Path) -> None:
    first, second = (
        album.write(islice(album.of_inspection(sheet(), seen), 2), tmp_path / name)
        for name in ("a", "b")
    )
    assert len(first) == 4
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_each_part_of_a_model_has_its_own(tmp_path: Path) -> None:
    toy = Loaded("toy", "directory", bart(), tokenizer())
    drawn = dict(album.of_inspection(sheet(), inspect(toy, SENTENCE)))
    parts = {name for name in drawn if not name.startswith("map-")}
    assert parts == {
        "overview-encoder", "distance-encoder", "overview-decoder", "distance-decoder",
        "overview-cross",
    }  # fmt: skip


def test_a_corpus_run_has_figures(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("the cat\nsat on a mat")
    for names, more in ((True, ["similarity"]), (False, [])):
        toy = Loaded("toy", "directory", bert(), tokenizer())
        run = measure_corpus(toy, file, Options(names=names))
        drawn = [name for name, _ in album.of_run(sheet(), run)]
        assert drawn == ["overview", "distance", *more]


def test_an_overview_shows_the_values(seen: Inspection) -> None:
    shown = panels(seen.statistics, "")
    known = [m for m in METRICS if any(_finite(seen, m))]
    assert len(shown) == len(known)
    for panel, metric in zip(shown, known, strict=True):
        flat = [value for row in panel.values for value in row]
        assert flat == [seen.statistics.value(metric, head) for head in seen.statistics.heads()]
        largest = max(seen.statistics.heads(), key=lambda h: seen.statistics.value(metric, h))
        assert panel.title.en.endswith(f"(highest: {largest})")
    (figure,) = [fig for name, fig in album.of_inspection(sheet(), seen) if name == "overview"]
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert [image.get_array().tolist() for image in images] == [
        [list(row) for row in panel.values] for panel in shown
    ]


def _finite(seen: Inspection, metric: object) -> list[bool]:
    values = (seen.statistics.value(metric, head) for head in seen.statistics.heads())  # type: ignore[arg-type]
    return [math.isfinite(value) for value in values]


def test_what_no_head_has_a_value_of_has_no_panel() -> None:
    toy = Loaded("toy", "directory", gpt2(), tokenizer(special=False))
    titles = [panel.title.en for panel in panels(inspect(toy, SENTENCE).statistics, "")]
    assert not [title for title in titles if title.startswith(("next", "separators"))]


def test_a_heat_map_shows_weights_and_tokens() -> None:
    values = [[1.0, math.nan], [0.25, 0.75]]
    figure = heat_map(sheet(), same("L0H0"), values, ["the", "cat"], ["a", "b"])
    axes = figure.axes[0]
    drawn = axes.images[0].get_array()
    assert drawn.filled(-1).tolist() == [[1.0, -1], [0.25, 0.75]]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["the", "cat"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b"]


def test_of_many_tokens_some_are_named_with_their_number() -> None:
    tokens = ["x" * 99] * 150
    figure = heat_map(sheet(), same("L0H0"), [[0.0] * 150] * 150, tokens, tokens)
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert len(names) == 50
    assert names[1] == "x" * 15 + "… 3"


@pytest.mark.parametrize("lang", LANGS)
def test_tokens_that_are_markup_or_in_no_font_are_spelled_out(tmp_path: Path, lang: Lang) -> None:
    """A missing character would be a box, and a warning, which fails the test."""
    tokens = [*HOSTILE, "我爱你", "\U00012000", "\u0e01", "$x$", "$\\alpha", "_^{}", ""]
    values = [[0.5] * len(tokens)] * len(tokens)
    figure = heat_map(sheet(lang), same("".join(HOSTILE)), values, tokens, tokens)
    svg = save(figure, tmp_path, "map")[1].read_text(encoding="utf-8")
    assert "<script" not in svg
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert "⟨12000⟩" in names
    assert "\x1b" not in "".join(names)


def test_without_a_chinese_font_chinese_is_spelled_out_or_refused() -> None:
    fonts = Fonts.found("en", files=[])
    assert fonts.families == (PLAIN,)
    assert fonts.legible("cat 我") == "cat ⟨6211⟩"
    with pytest.raises(
        BadValue, match=r"figures: no font with Chinese .*fonts-noto-cjk or fonts-w"
    ):
        Fonts.found("zh", files=[])


def test_a_file_that_is_no_font_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "wqy-microhei.ttc").write_bytes(b"no font")
    assert Fonts.found("en", files=[tmp_path / "wqy-microhei.ttc"]).families == (PLAIN,)


def test_chinese_figures_are_in_a_font_that_has_it(seen: Inspection) -> None:
    chinese = sheet("zh")
    assert ord("熵") in chinese.fonts.characters
    for name, figure in album.of_inspection(chinese, seen):
        title = figure._suptitle.get_text()
        assert "⟨" not in title, name
        assert name.startswith("map-") or any("\u4e00" <= c <= "\u9fff" for c in title), name


def test_a_profile_draws_each_head_and_the_baseline(seen: Inspection) -> None:
    head = seen.statistics.heads()[4]
    values = seen.statistics.profile(BY_DISTANCE, head)
    flat = seen.statistics.uniform_profile(BY_DISTANCE, head.layer)
    curves = [Curve(same("a"), values), Curve(same("u"), flat, baseline=True)]
    figure = profile(sheet(), BY_DISTANCE.title, BY_DISTANCE.places, curves, same("distance"))
    lines = [line for line in figure.axes[0].lines if not line.get_label().startswith("_")]
    reached = [i for i, value in enumerate(flat) if value > UNSEEN]
    for line, wanted in zip(lines, (values, flat), strict=True):
        assert list(line.get_ydata()) == list(wanted[min(reached) : max(reached) + 1])
    assert [line.get_linestyle() for line in lines] == ["-", "--"]


def test_what_lies_beyond_the_places_is_a_mark_of_its_own() -> None:
    places, values = ("< -1", "-1", "0", "+1", "> +1"), (0.5, 0.25, 0.25, 0.0, 0.0)
    figure = profile(sheet(), same("t"), places, [Curve(same("a"), values)], same("d"))
    line, marks = figure.axes[0].lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 2], [0.25, 0.25])
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([0], [0.5])
    assert marks.get_linestyle() == "None"
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["< -1", "-1", "0"]


def test_heads_that_agree_stand_side_by_side_in_a_frame() -> None:
    distance = torch.tensor([[0.0, 0.6, 0.05], [0.6, 0.0, 0.5], [0.05, 0.5, 0.0]])
    figure = similarity(sheet(), same("t"), ["A", "B", "C"], distance)
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["A", "C", "B"]
    order = [0, 2, 1]
    assert axes.images[0].get_array().tolist() == distance[order][:, order].double().tolist()
    (frame,) = axes.patches
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((-0.5, -0.5), 2, 2)


def test_an_ablation_curve_has_a_line_and_a_band_for_each_order() -> None:
    shares, losses = (0.0, 0.1, 0.2), (3.0, 3.5, 5.0)
    ends = zip(losses, (2.0, 3.0, 4.0), (4.0, 4.0, 6.0), strict=True)
    each = [Interval(loss, low, high, 0.95, 8) for loss, low, high in ends]
    points = [Point((), share, loss) for share, loss in zip(shares, each, strict=True)]
    given = Removal(Translated("random", "随机"), points)
    figure = ablation(sheet(), same("t"), [given, given], same("loss"))
    axes = figure.axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [list(losses)] * 2
    assert [list(line.get_xdata()) for line in axes.lines] == [[0.0, 10.0, 20.0]] * 2
    assert len(axes.collections) == 2
    low, high = axes.collections[0].get_paths()[0].get_extents().intervaly
    assert (low, high) == (2.0, 6.0)


def test_figures_go_into_a_folder(tmp_path: Path, seen: Inspection) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFile, match=r"figures: cannot create the folder .*file: File exists"):
        album.write(album.of_inspection(sheet(), seen), tmp_path / "file")


def test_matplotlib_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Sheet("en", Fonts((PLAIN,), frozenset()))
    for module in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'headwise\[plots\]'"):
        Sheet.of("en")
    with pytest.raises(MissingExtra, match=r"pip install 'headwise\[plots\]'"):
        made.figure(1, 1)


def test_pyplot_is_never_loaded() -> None:
    code = (
        "import sys; from headwise.plots.figure import Sheet; from headwise.plots import album; "
        "from headwise.plots.curves import ablation; from headwise.lang import same; "
        "ablation(Sheet.of('en'), same('t'), [], same('l')).canvas; "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
