"""The HTML page of a history and the schema of its data, tested without a browser."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports import schemas
from attention_conformance.reports.history import html
from attention_conformance.reports.history.pages import changes
from attention_conformance.reports.history.series import history
from attention_conformance.reports.tests import pages, trends
from attention_conformance.reports.tests.large import write_history
from attention_conformance.reports.tests.pages import HOSTILE


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the command writes for the small history."""
    folder = tmp_path_factory.mktemp("trend")
    assert main(["history", str(trends.folder(folder / "in")), "-o", str(folder / "out")]) == 0
    return folder / "out"


def data(text: str) -> Any:
    """The data inside a page."""
    packed = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', text)
    assert packed
    return json.loads(pages.plain(packed[1]))


def test_the_json_keeps_its_schema(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The schema that is printed is valid, knows every outcome, and holds for a history with every part."""
    assert main(["schema", "history"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    counts = schema["$defs"]["Counts"]["properties"]
    assert set(counts) == {outcome.value for outcome in Outcome}
    found = json.loads((written / "history.json").read_text())
    assert found["refused"]
    assert found["conformance"]
    jsonschema.validate(found, schema)


@pytest.mark.parametrize(("place", "value"), [("median", -1.0), ("when", None), ("low", "1")])
def test_the_schema_refuses_what_is_no_history(written: Path, place: str, value: object) -> None:
    """A negative time, a run without a date and an interval that is text break the schema."""
    found = json.loads((written / "history.json").read_text())
    found["series"][0]["points"][0][place] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, json.loads(schemas.schema("history")))


def test_names_are_text(written: Path) -> None:
    """Markup in a name occurs in the page only escaped."""
    text = (written / "history.html").read_text()
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_every_run_is_in_the_data_with_its_interval_and_versions(written: Path) -> None:
    """The runs of two cells are there, with the change where it was planted."""
    frames = data((written / "history.html").read_text())["frames"]
    assert frames["points"]["length"] == 2 * trends.RUNS
    assert None not in frames["points"]["columns"]["low"]
    assert frames["points"]["columns"]["versions"]["texts"] == ["torch 2.12, numpy 2.0", "torch 2.13, numpy 2.0"]
    assert frames["changes"]["columns"]["run"] == [trends.SLOW_FROM]
    assert frames["changes"]["columns"]["ratio"] == [pytest.approx(trends.RATIO, rel=0.01)]
    assert frames["levels"]["columns"]["run"] == [0, 0, trends.SLOW_FROM]


def test_changes_that_an_answer_does_not_name_are_a_click_away(written: Path, tmp_path: Path) -> None:
    """The number of the others, with a link to them, follows the five that are named."""
    found = history(trends.folder(tmp_path))
    many = pd.concat([changes(found)] * 7, ignore_index=True)
    for answer in html.questions(found, many)[:2]:
        assert [item.text for item in answer.groups[0].items[5:]] == ["and 2 more"]
        assert answer.groups[0].items[5].link == "#changes"
    assert 'id="changes"' in (written / "history.html").read_text()


def test_a_folder_without_changes_says_so(tmp_path: Path) -> None:
    """It also has no table of changes."""
    text = html.page(history(trends.folder(tmp_path, slow=False)))
    assert text.count(html.NOTHING) == 3
    assert 'id="steps"' not in text


def test_what_was_refused_is_counted_and_named(written: Path) -> None:
    """One of 34 files is damaged; the page and the Markdown say so in the same words."""
    for name in ("history.html", "history.md"):
        text = (written / name).read_text()
        assert "34 files were found, 33 used, 1 refused." in text
        assert "bad.json" in text


def test_a_trend_has_an_address_of_its_own() -> None:
    """Names that differ only in characters that an address cannot have, or in the machine, have different ones."""
    key = ("a b", "cpu", "float32", "w")
    found = {html.anchor(key, "m"), html.anchor(("a-b", *key[1:]), "m"), html.anchor(key, "n")}
    assert len(found) == 3
    assert all(re.fullmatch(r"trend-a-b-cpu-float32-w-[0-9a-f]{8}", one) for one in found)


def test_what_was_planted_in_a_long_history_is_found(tmp_path: Path) -> None:
    """The large history in small: its first cell becomes slower and later as fast as before, no other changes."""
    write_history(tmp_path, runs=40, cells=3)
    found = history(tmp_path)
    assert [[step.at for step in one.steps] for one in found.series] == [[20, 30], [], []]


def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence names it, and nothing is written."""
    monkeypatch.setitem(sys.modules, "ruptures", None)
    assert main(["history", str(trends.folder(tmp_path / "in")), "-o", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "error: history needs ruptures: pip install 'attention-conformance[reports]'\n"
    assert not (tmp_path / "out").exists()
