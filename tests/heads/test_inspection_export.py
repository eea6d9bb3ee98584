"""The JSON schema and the tables of an inspection; the documentation names every key."""

import json
import re
from pathlib import Path

import pytest

from headwise.document.csv_text import as_csv
from headwise.errors import BadValue
from headwise.heads.inspection import inspect
from headwise.heads.inspection_export import HEAD, as_json, faults, file_of, schema, table
from headwise.heads.models.load import Loaded
from headwise.heads.names import Head
from tests.heads.tiny import bart, bert, gpt2, tokenizer

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(("make", "special"), [(bert, True), (gpt2, False), (bart, True)])
def test_json_keeps_to_the_schema(make, special: bool) -> None:
    toy = Loaded("toy", "directory", make(), tokenizer(special=special))
    found = json.loads(as_json(inspect(toy, "the cat sat", heads="all")))
    assert faults(found) == []
    for key in found:
        assert faults({name: each for name, each in found.items() if name != key}), key
    assert faults({**found, "schema": "headwise.inspect/2"})
    assert faults({**found, "heads": []})


def test_the_page_names_every_key() -> None:
    text = (ROOT / "docs" / "inspect_report.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_0-9]+)`", text))
    shapes = schema()["$defs"]
    for shape in ("one_text", "a_corpus"):
        assert set(shapes[shape]["required"]) <= named
    for part in ("model", "corpus"):
        where = shapes["model"] if part == "model" else shapes["a_corpus"]["properties"]["corpus"]
        assert set(where["required"]) <= named
    for part in ("names", "alignment"):
        assert set(shapes["a_corpus"]["properties"][part]["items"]["required"]) <= named
    assert set(HEAD) | {"names"} <= named


def test_names_have_a_column_where_they_were_given() -> None:
    toy = Loaded("toy", "directory", bert(), tokenizer())
    statistics = inspect(toy, "the cat").statistics
    assert "names" not in table(statistics)
    columns = table(statistics, {Head.parse("L0H1"): ["local", "diffuse"]})
    assert columns["names"] == ["", "local; diffuse", "", "", "", ""]
    assert as_csv(columns).splitlines()[0].startswith("head,part,layer,number,names,entropy,")


def test_a_table_is_csv_or_parquet() -> None:
    with pytest.raises(BadValue, match="format: unknown 'xls'; expected one of 'csv', 'parquet'"):
        file_of({"head": ["L0H0"]}, "xls")
