"""Select the heads to remove: by name, all heads, or the heads that a saved run named."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue
from headwise.heads.ablation.experiment.options import AblationOptions
from headwise.heads.ablation.experiment.texts import Texts
from headwise.heads.ablation.sites import Site, check_exist, every_head
from headwise.heads.corpus.checkpoint import open_run
from headwise.heads.corpus.corpus_report import SCHEMA
from headwise.heads.inspection_export import faults
from headwise.heads.names import Head, parse_heads
from headwise.lang import Text, same

MAX_JSON_BYTES = 1 << 26  # the largest JSON file that is read


@dataclass(frozen=True, eq=False)
class Selection:
    """The heads to remove, or None for all, and the model and corpus of the run that named them."""

    heads: tuple[Head, ...] | None
    model: Mapping[str, Any] | None = None
    corpus: Mapping[str, Any] | None = None

    def resolve(self, attentions: tuple[Site, ...], model_type: str) -> tuple[Head, ...]:
        """Return the heads; raise `BadValue` if they or the saved run do not fit the model."""
        every = every_head(attentions)
        if self.model is not None:
            layers = sum(len(site.layers) for site in attentions)
            loaded = {"type": model_type, "layers": layers, "heads": len(every)}
            saved = {name: self.model.get(name) for name in loaded}
            if loaded != saved:
                raise BadValue(
                    "open: the run measured a model with {saved}, but this model has {loaded}; "
                    "name the heads with --heads",
                    saved=_listed(saved),
                    loaded=_listed(loaded),
                )
        if self.heads is None:
            return every
        try:
            check_exist(self.heads, attentions)
        except BadValue as error:
            if self.model is None:
                raise
            raise BadValue(
                "open: the run measured another model ({error}); name the heads with --heads",
                error=error.text,
            ) from error
        return self.heads

    def same_texts(self, texts: Texts) -> bool:
        """Return whether a saved run named the heads on the texts of the loss."""
        if self.corpus is None:
            return False
        probe = texts.source == "probe"
        read = texts.file if probe else texts.sha256
        return bool(read) and self.corpus.get("file" if probe else "sha256") == read


def select_heads(options: AblationOptions) -> Selection:
    """Return the heads that the options select; raise `BadFile` if a run cannot be opened."""
    if options.open is not None:
        return _from_run(options.open, options.named or "")
    names = (options.heads or "").strip()
    return Selection(None if names.lower() == "all" else parse_heads(names))


def _from_run(path: Path, name: str) -> Selection:
    if _is_folder(path):
        run = open_run(path)
        names = [(str(named.head), named.name) for named in run.names]
        model, corpus = run.model, run.corpus
    else:
        data = _read_json(path)
        names = [(entry["head"], entry["name"]) for entry in data["names"]]
        model, corpus = data["model"], data["corpus"]
    try:
        parsed = [Head.parse(head) for head, head_name in names if head_name == name]
    except BadValue as error:
        raise _not_a_run(path, error.text) from error
    if not parsed:
        available = ", ".join(map(clean, sorted({head_name for _, head_name in names})))
        raise BadValue(
            "named: {path} has no head named {name!r}; the names in it are: {available}",
            path=clean(str(path)),
            name=name,
            available=available or "–",
        )
    return Selection(tuple(dict.fromkeys(parsed)), model, corpus)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # an invalid name: reading it raises the error with its reason
        return False


def _read_json(file: Path) -> dict[str, Any]:
    """Read the JSON report that ``headwise inspect`` wrote for a corpus or a probe."""
    try:
        if file.exists() and (not file.is_file() or file.stat().st_size > MAX_JSON_BYTES):
            raise _not_a_run(file, Text("it is not a file, or too large"))
        data = json.loads(file.read_bytes())
    except BadFile:
        raise
    except OSError as error:
        raise _not_a_run(file, same(error.strerror or type(error).__name__)) from error
    except (ValueError, RecursionError) as error:
        raise _not_a_run(file, Text("it is not JSON")) from error
    violations = faults(data)
    if violations:
        raise _not_a_run(file, same(clean(violations[0])[:200]))
    if data["schema"] != SCHEMA:
        raise _not_a_run(file, Text("its schema is not {schema}", schema=SCHEMA))
    return dict(data)


def _not_a_run(file: Path, reason: Text) -> BadFile:
    return BadFile(
        "open: expected a folder from `inspect --save`, or JSON from `inspect --corpus` or "
        "`--probe`, got {name}: {reason}",
        name=clean(str(file)),
        reason=reason,
    )


def _listed(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {clean(str(value))}" for name, value in facts.items())
