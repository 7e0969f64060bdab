"""The published report is the one that its result files give."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.bench.analysis.fits import Growth
from attention_conformance.cli import main
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports import badge, publish
from attention_conformance.reports.html import changes
from attention_conformance.reports.html.page import page as html_page
from attention_conformance.reports.input.read import read
from attention_conformance.reports.input.records import Records
from attention_conformance.reports.markdown import summary
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.publish import FOLDER
from attention_conformance.reports.tests import pages
from attention_conformance.reports.tests.files import bench_run, conformance_file, plan, result, steady, timed

pytestmark = pytest.mark.slow

#: Bytes of a generated file that is tracked, and of the one that may be larger, the page with its plots.
LARGEST, PAGE = 1_000_000, 1_600_000


#: The published results, including those of a machine with a GPU.
FOLDERS = (FOLDER, FOLDER / "h200")


@pytest.fixture(scope="module")
def published() -> Model:
    """The model of the published files."""
    return publish.model()


@pytest.fixture(scope="module")
def models(published: Model) -> dict[Path, Model]:
    """The model of each folder."""
    return {FOLDER: published, **{folder: publish.model(folder) for folder in FOLDERS[1:]}}


@pytest.mark.documents
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_published_summary_is_made_from_the_published_files(folder: Path, models: dict[Path, Model]) -> None:
    """Regenerated from the result files next to it, it is the same."""
    assert summary.page(models[folder]) == (folder / "summary.md").read_text(encoding="utf-8")


@pytest.mark.documents
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_published_badges_are_made_from_the_published_files(folder: Path, models: dict[Path, Model]) -> None:
    """There is one for each implementation."""
    kept = {path.stem: path.read_text(encoding="utf-8") for path in (folder / "badges").iterdir()}
    assert badge.badges(models[folder]) == kept


def test_published_files_are_small() -> None:
    """None except the page has more than a megabyte; measured data are compressed."""
    sizes = {path: path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert max(sizes.pop(folder / "report.html") for folder in FOLDERS) < PAGE
    assert max(sizes.values()) < LARGEST
    assert not [path for path in sizes if path.suffix in (".json", ".jsonl", ".csv")]


def test_publishing_keeps_samples_to_half_a_thousandth_and_six_digits_of_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without files it regenerates what is made from them; no outcome, name or count differs."""
    files = [
        bench_run(tmp_path / "bench.json", timed("x", 128, steady(1e-3)), plan=plan()),
        conformance_file(tmp_path / "conformance.jsonl", result("x", "c1")),
    ]
    folder = tmp_path / "out"
    assert main(["publish", *map(str, files), "--base", str(files[0]), "-o", str(folder)]) == 0
    once = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert set(once) == {"bench.json.zst", "conformance.jsonl.zst", "report.html", "summary.md"}
    assert main(["publish", "-o", str(folder)]) == 0
    assert {name: (folder / name).read_bytes() for name in once} == once
    assert str(folder / "report.html") in capsys.readouterr().out.splitlines()
    raw, new = read(files), read(publish.published_files(folder))
    for before, after in zip(raw.cells, new.cells, strict=True):
        assert after == {
            name: close(value, 5e-4 if name.endswith("seconds") else 5e-6) for name, value in before.items()
        }
    for was, now in zip(raw.results, new.results, strict=True):
        assert replace(now, share=was.share, run_seconds=0, prepare_seconds=0) == replace(
            was, run_seconds=0, prepare_seconds=0
        )
        assert now.share == close(was.share, 5e-6)
    ((timed_before, timed_after),) = zip(raw.samples.values(), new.samples.values(), strict=True)
    assert timed_after.sizes == timed_before.sizes
    for runs_before, runs_after in zip(timed_before.process_runs, timed_after.process_runs, strict=True):
        for batch_before, batch_after in zip(runs_before, runs_after, strict=True):
            assert batch_after == pytest.approx(sorted(batch_before), rel=5.001e-4)
    assert not (timed_after.seconds == timed_before.seconds).all()


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0, 0.0), (1.2344e-3, 1.234e-3), (2.3451, 2.346), (0.0077777, 7.78e-3), (9.9996, 10.0)]
)
def test_a_sample_has_as_few_digits_as_half_a_thousandth_needs(value: float, expected: float) -> None:
    """Steps are 1, 2 and 5 in the fourth digit, so that a large one loses no more; a second time changes nothing."""
    assert publish._sample(value) == expected
    assert publish._sample(expected) == expected
    assert expected == pytest.approx(value, rel=5e-4)


def test_what_no_page_shows_is_not_kept(tmp_path: Path) -> None:
    """Seconds of single calls and messages of the base run are dropped; outcomes and shares are kept."""
    path = conformance_file(tmp_path / "conformance.jsonl", result("x", "c1", message="long", run_seconds=0.25))
    (kept,) = read(publish.keep([path], tmp_path / "base", is_base=True)).results
    (whole,) = read(publish.keep([path], tmp_path / "whole")).results
    assert (kept.message, kept.run_seconds) == ("", 0.0)
    assert (whole.message, whole.run_seconds) == ("long", 0.0)
    assert replace(kept, message="long") == whole


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("/home/me/env/lib/python3.11/site-packages/jax/_src/core.py", "jax/_src/core.py"),
        ("/usr/lib/python3.11/inspect.py", "python3.11/inspect.py"),
        ("/home/me/suite/impls/torch/sdpa.py", "impls/torch/sdpa.py"),
        ("kernels.py", "kernels.py"),
    ],
)
def test_a_path_in_a_traceback_begins_at_what_was_run(file: str, kept: str, tmp_path: Path) -> None:
    """Folders of the machine that the results were made on are not published."""
    message = 'Raised:   Error\n            File "{}", line 1, in attention'
    path = conformance_file(tmp_path / "conformance.jsonl", result("x", "c1", message=message.format(file)))
    (found,) = read(publish.keep([path], tmp_path / "whole")).results
    assert found.message == message.format(kept)


def test_published_messages_have_no_path_of_a_machine(models: dict[Path, Model]) -> None:
    """Every traceback that is published begins at the checkout or at the folder of the libraries."""
    messages = [each.message for model in models.values() for each in model.records.results]
    assert len(messages) > 10_000
    assert not [message for message in messages if 'File "/' in message]


def close(value: Any, rel: float) -> Any:
    """A number with fewer digits; anything else unchanged."""
    return pytest.approx(value, rel=rel) if isinstance(value, float) else value


def test_what_is_no_result_file_is_not_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of another name is not published either; nothing is written."""
    path = tmp_path / "bench.json"
    path.write_text("{}")
    assert main(["publish", str(path), "-o", str(tmp_path / "out")]) == 2
    assert "bench.json is neither" in capsys.readouterr().err
    assert main(["publish", str(tmp_path / "mine.json"), "-o", str(tmp_path / "out")]) == 2
    assert "mine.json: expected conformance.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_published_html_page_says_what_got_worse_since_the_base_run(published: Model) -> None:
    """It has the result of a comparison with the base run, or says that there is none."""
    lead = html.escape(changes.worse(published.since).lead)
    assert f'<p class="lead">{lead}</p>' in (FOLDER / "report.html").read_text(encoding="utf-8")


@pytest.mark.documents
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_published_html_page_has_the_data_of_the_published_files(folder: Path, models: dict[Path, Model]) -> None:
    """The numbers behind its tables and plots are the ones that the files give now."""
    kept = (folder / "report.html").read_text(encoding="utf-8")
    assert pages.unpacked(html_page(models[folder])) == pages.unpacked(kept)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_published_run_is_complete_and_has_no_failure(folder: Path, models: dict[Path, Model]) -> None:
    """Published runs were completed, and every deviation is in the ledger."""
    records = models[folder].records
    assert all(source.complete for source in records.sources)
    assert not [result for result in records.results if result.outcome.value == "failed"]


def test_memory_on_a_gpu_is_what_the_arrays_take() -> None:
    """Tiled kernels hold little but their output, 4 MiB; compositions hold some arrays of all scores, 256 MiB each."""
    cells = read([FOLDER / "h200" / "bench.json.zst"]).cells
    held = {each["implementation"]: each["memory_bytes"] for each in cells if each["workload"].endswith("s4096-causal")}
    fused = {name: held[name] / 2**20 for name in held if name.startswith("torch-sdpa") or name == "jax-nn-cudnn"}
    assert len(fused) == 5
    assert all(4.0 <= size < 4.2 for size in fused.values())
    assert min(held["torch-eager"], held["jax-nn"]) > 2 * 256 * 2**20


def test_whose_memory_is_quadratic_is_as_their_code_says() -> None:
    """Implementations that write all scores out are quadratic, those in blocks are not; short calls cannot tell."""
    records = read([FOLDER / "bench.json.zst"])
    found = {(one.implementation, one.family): one.growth for one in Model(records, clauses()).memories}
    families = ("prefill-b1h8d64s*", "prefill-b1h8d64s*-causal")
    short = Records((), (), tuple(one for one in records.cells if one["family"] in families and one["S"] <= 1024))
    for name in ("numpy-eager", "torch-eager", "onnx-attention23", "torch-sdpa-math", "jax-jit"):
        assert [found[name, family] for family in families] == [Growth.QUADRATIC] * 2
    for name in ("numpy-tiled", "jax-tiled", "torch-sdpa-flash", "torch-sdpa"):
        assert [found[name, family] for family in families] == [Growth.LESS] * 2
    assert {one.growth for one in Model(short, clauses()).memories} == {Growth.UNCLEAR}
