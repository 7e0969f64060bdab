"""``attention-conformance compare``: exit status and verdict, for everything that can change between two runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from attention_conformance.bench.analysis.statistics import Interval, Verdict
from attention_conformance.cli import main
from attention_conformance.reports.compare import pages
from attention_conformance.reports.compare.changes import Comparison, Finding, Kind, Status
from attention_conformance.reports.compare.compare import compare
from attention_conformance.reports.input.read import read
from attention_conformance.reports.tests.files import (
    bench_file,
    bench_run,
    cell,
    conformance_file,
    failed,
    fingerprint,
    peak,
    plan,
    result,
    steady,
)
from attention_conformance.reports.tests.files import timed as timed_cell

WHO = ("a", "b", "c", "d")
LENGTHS = (128, 256, 512)

#: The headline where b is a quarter slower.
FOUND = "WORSE: b float32 is 25 % slower (all 3 cells)"

#: Plans with warm and with cold caches.
WARM, COLD = plan(), plan("cold")


def run(
    path: Path,
    seed: int,
    slow: dict[str, float] | None = None,
    drift: float = 1.0,
    names: Sequence[str] = WHO,
    **ours: Any,
) -> Path:
    """A run of some implementations on a machine that is ``drift`` times as slow, with its peaks."""
    factors, rng = slow or {}, np.random.default_rng(seed)
    cells = [
        timed_cell(who, length, steady(1e-3 * drift * factors.get(who, 1.0) * np.exp(0.004 * rng.normal()), at + seed))
        for at, (who, length) in enumerate((who, length) for who in names for length in LENGTHS)
    ]
    return bench_run(path, *cells, **{"peaks": [peak(flops=1e11 / drift, byte=1e10 / drift)], **ours})


def between(base: Path, new: Path, **options: Any) -> Comparison:
    """The changes from one file to another."""
    return compare(read([base]), read([new]), **options)


def verdicts(found: Comparison) -> dict[str, set[str]]:
    """The verdicts by implementation."""
    return {who: {one.verdict.name for one in found.speeds if one.implementation == who} for who in WHO}


def test_two_equal_runs_have_nothing_worse(tmp_path: Path) -> None:
    """They differ only by chance: no cell is faster or slower, most are the same, status 0."""
    found = between(run(tmp_path / "a.json", 1), run(tmp_path / "b.json", 2))
    assert found.status is Status.NOTHING_WORSE
    assert set().union(*verdicts(found).values()) <= {"SAME", "UNCLEAR"}


def test_a_slower_implementation_is_found(tmp_path: Path) -> None:
    """One of four is a quarter slower, the others are not; the reverse is an improvement, and nothing is worse."""
    base, new = run(tmp_path / "a.json", 1), run(tmp_path / "b.json", 2, slow={"b": 1.25})
    assert verdicts(between(base, new))["b"] == {"SLOWER"}
    assert between(base, new).status is Status.WORSE
    assert verdicts(between(new, base))["b"] == {"FASTER"}
    assert between(new, base).status is Status.NOTHING_WORSE


def test_a_slower_machine_is_no_slower_implementation(tmp_path: Path) -> None:
    """Everything takes 8 % longer, the peaks too: that is the machine, and the ratios are without it."""
    found = between(run(tmp_path / "a.json", 1), run(tmp_path / "b.json", 2, drift=1.08))
    assert all(one.new / one.base > 1.05 for one in found.speeds)
    assert all(one.ratio.value < 1.03 for one in found.speeds)
    assert found.status is Status.NOTHING_WORSE
    assert found.machines[0].factor.value == pytest.approx(1.08, rel=0.02)


def test_everything_slower_is_one_finding(tmp_path: Path) -> None:
    """Everything takes 40 % longer, and the peaks stayed."""
    base, new = run(tmp_path / "a.json", 1), run(tmp_path / "b.json", 2, drift=1.4, peaks=[peak()])
    found = between(base, new)
    assert pages.headline(found).startswith("WORSE: everything on cpu is 4")
    assert pages.headline(found).endswith(" % slower (all 12 cells)")


def test_kept_conformance_does_not_make_unclear_times_the_same(tmp_path: Path) -> None:
    """Where every time is unclear the status is 2, even if no case changed."""
    lines = conformance_file(tmp_path / "c.jsonl", result("x", "c"))
    few = bench_run(tmp_path / "few.json", timed_cell("a", 128, [[[1e-3] * 4]]))
    assert compare(read([few, lines]), read([few, lines])).status is Status.CANNOT_TELL
    base = [run(tmp_path / "a.json", 1), lines]
    assert compare(read(base), read(base)).status is Status.NOTHING_WORSE


def test_a_finding_counts_where_no_cell_is_certain(tmp_path: Path) -> None:
    """An implementation that is slower as a whole is worse, unless a rule ignores all its cells."""
    one = Finding("a", "cpu", "float32", Interval(1.2, 1.1, 1.3), Verdict.SLOWER, 9, 0)
    found = Comparison((), (), (), (), findings=(one,))
    assert (found.status, pages.headline(found)) == (Status.WORSE, "WORSE: a float32 is 20 % slower (0 of 9 cells)")
    assert Comparison((), (), (), (), findings=(replace(one, ignored=True),)).status is not Status.WORSE


def test_the_cell_that_changed_most_is_said_where_it_lies_apart() -> None:
    """If a kernel lost one of its paths, the mean over its cells says little."""
    for most, said in ((2.2, ", up to 120 %"), (1.25, ""), (1.0, "")):
        one = Finding("a", "cpu", "float32", Interval(1.2, 1.1, 1.3), Verdict.SLOWER, 9, 9, most=most)
        assert pages.whole(one) == f"a float32 is 20 % slower (all 9 cells{said})"
    faster = Finding("a", "cpu", "float32", Interval(0.8, 0.7, 0.9), Verdict.FASTER, 9, 9, most=0.4)
    assert pages.whole(faster).endswith("20 % faster (all 9 cells, up to 60 %)")


def test_the_most_is_that_of_a_cell(tmp_path: Path) -> None:
    """It is the largest ratio of the cells that changed in the same direction as the whole."""
    base, new = run(tmp_path / "a.json", 1), run(tmp_path / "b.json", 2, slow={"b": 1.25})
    (finding,) = between(base, new).findings
    assert finding.most == max(one.ratio.value for one in between(base, new).speeds if one.implementation == "b")


def test_everything_slower_on_the_same_machine_is_not_excused_by_one_implementation(tmp_path: Path) -> None:
    """A single implementation has no common factor to hide behind: the peaks stayed, so it is slower."""
    base = bench_run(tmp_path / "a.json", *(timed_cell("a", n, steady(1e-3, n)) for n in LENGTHS))
    new = bench_run(tmp_path / "b.json", *(timed_cell("a", n, steady(1.3e-3, n + 1)) for n in LENGTHS))
    assert {one.verdict.name for one in between(base, new).speeds} == {"SLOWER"}


def test_too_few_calls_are_unclear(tmp_path: Path) -> None:
    """Four calls say nothing about their scatter, whatever the ratio."""
    files = [
        bench_run(tmp_path / f"{name}.json", timed_cell("a", 128, [[[seconds] * 4]]))
        for name, seconds in (("a", 1e-3), ("b", 9e-3))
    ]
    (one,) = between(*files).speeds
    assert (one.verdict.name, one.why) == ("UNCLEAR", "4 calls are too few")


def test_samples_alone_are_compared(tmp_path: Path) -> None:
    """Without process runs only the samples count; without peaks and others the machine may have drifted by 10 %."""
    samples = [(1e-3 * (1 + 0.01 * (at % 5)), 2e-3 * (1 + 0.01 * (at % 5))) for at in range(40)]
    base, new = (
        bench_file(
            tmp_path / f"{side}.json", cell("a", 128, median_ms=1.02 + side, data=[one[side] for one in samples])
        )
        for side in (0, 1)
    )
    found = between(base, new)
    assert [one.verdict.name for one in found.speeds] == ["SLOWER"]
    assert (found.machines[0].factor.value, found.machines[0].yardsticks) == (1.0, ())


def test_different_machines_are_refused_with_the_fields(tmp_path: Path) -> None:
    """The times are not compared, the fields that differ are named, and the status is 2."""
    other = fingerprint(id="ffff", cpu="another processor", cores_usable=64)
    found = between(run(tmp_path / "a.json", 1), run(tmp_path / "b.json", 2, fingerprint=other))
    assert found.status is Status.CANNOT_TELL
    assert not found.speeds
    assert "cpu: a processor → another processor; cores_usable: 2 → 64" in found.unfit[0]


def test_warm_and_cold_caches_are_not_compared(tmp_path: Path) -> None:
    """Not even with a yardstick; the setting is named, and the status is 2.  A file that does not say is warm."""
    old, warm, cold = (run(tmp_path / f"{n}.json", n, plan=how) for n, how in enumerate((None, WARM, COLD)))
    assert between(old, warm).status is Status.NOTHING_WORSE
    assert between(cold, cold).status is Status.NOTHING_WORSE
    for yardstick in ("", "a"):
        found = between(old, cold, yardstick=yardstick)
        assert (found.status, found.speeds) == (Status.CANNOT_TELL, ())
        assert found.unfit == ("times measured in different ways are not compared (cache: warm → cold)",)


def test_a_run_beside_other_work_is_named(tmp_path: Path) -> None:
    """A run whose load average was above its cores is named; one below them is not."""
    quiet, loud = (run(tmp_path / f"{n}.json", n, load_average=load) for n, load in enumerate((1.9, 5.44)))
    assert between(quiet, quiet).notes == ()
    (note,) = between(quiet, loud).notes
    assert note == "other work ran during 1.json: a load average of 5.4 on 2 cores"


def test_a_run_whose_calls_waited_for_a_core_is_named(tmp_path: Path) -> None:
    """The load average does not matter: a neighbour on a core of its own takes none of the calls' time."""
    beside, waiting = (
        run(tmp_path / f"{n}.json", n, load_average=5.4 - n, core_wait=wait) for n, wait in enumerate((0.01, 0.31))
    )
    assert between(beside, beside).notes == ()
    (note,) = between(beside, waiting).notes
    assert note == "other work ran during 1.json: calls waited 31 % of their time for a core"


def test_a_workload_on_which_the_machine_moved_is_said(tmp_path: Path) -> None:
    """7 % in all implementations at one length: none is called slower, and a note says what was taken off."""
    names = [f"{kind}-{at}" for kind in ("torch", "jax", "onnx", "numpy") for at in (1, 2)]
    base = run(tmp_path / "a.json", 1, names=names)
    cells = [
        timed_cell(who, length, steady(1e-3 * (1.07 if length == 128 else 1.0), at))
        for at, (who, length) in enumerate((who, length) for who in names for length in LENGTHS)
    ]
    found = between(base, bench_run(tmp_path / "b.json", *cells, peaks=[peak(flops=1e11, byte=1e10)]))
    assert found.status is Status.NOTHING_WORSE
    assert {one.verdict.name for one in found.speeds} == {"SAME"}
    (note,) = found.notes
    said = "is 7 % slower in all implementations together, which is attributed to the machine"
    assert note.startswith("float32 ")
    assert note.endswith(f" on cpu {said}")
    assert between(base, run(tmp_path / "c.json", 2, names=names)).notes == ()


def test_times_on_one_core_and_on_two_are_not_compared(tmp_path: Path) -> None:
    """The number is named, and the status is 2.  A file that does not say may have used any number."""
    old, two, one = (run(tmp_path / f"{n}.json", n, plan=how) for n, how in enumerate((None, WARM, plan(threads=1))))
    assert between(two, two).status is between(old, one).status is Status.NOTHING_WORSE
    found = between(two, one)
    assert (found.status, found.speeds) == (Status.CANNOT_TELL, ())
    assert found.unfit == ("times measured in different ways are not compared (threads: 2 → 1)",)


def test_times_by_different_clocks_are_not_compared(tmp_path: Path) -> None:
    """A file that does not say used the host's; cells that only one run has do not matter."""
    cells = [timed_cell("a", n, steady(1e-3, n), device="cuda") for n in LENGTHS]
    by_events = [timed_cell("a", n, steady(1e-3, n), device="cuda", clock="device events") for n in LENGTHS]
    base, new = bench_run(tmp_path / "a.json", *cells), bench_run(tmp_path / "b.json", *by_events)
    found = between(base, new)
    assert (found.status, found.speeds) == (Status.CANNOT_TELL, ())
    assert "(clock: wall → device events)" in found.unfit[0]
    more = bench_run(tmp_path / "c.json", *by_events, *(timed_cell("b", n, steady(1e-3, n)) for n in LENGTHS))
    assert not between(new, more).unfit


@pytest.mark.parametrize(
    ("new", "yardstick", "noted"),
    [
        ({"fingerprint": fingerprint(id="ffff", cpu="another processor")}, "", "are from different machines"),
        ({"fingerprint": fingerprint(id="ffff", cpu="another processor")}, "b", "are from different machines"),
        ({"plan": plan(threads=1)}, "", "were timed in different ways"),
    ],
)
def test_memory_of_other_machines_and_threads_is_not_compared(
    new: dict[str, Any], yardstick: str, noted: str, tmp_path: Path
) -> None:
    """Twice the memory is not worse there, and a note says so; on one machine and with one way of timing it is."""
    here = {"plan": WARM}
    base, other, alike = (
        bench_run(
            tmp_path / f"{at}.json",
            *(timed_cell(who, n, steady(1e-3, n), memory_bytes=n * size) for who in "ab" for n in LENGTHS),
            **how,
        )
        for at, (size, how) in enumerate(((1 << 20, here), (1 << 21, here | new), (1 << 21, here)))
    )
    found = between(base, other, yardstick=yardstick)
    assert not found.changes
    assert f"memory is not compared: the runs {noted}" in found.notes
    assert {change.kind for change in between(base, alike).changes} == {Kind.MEMORY}


def test_counts_of_changes_are_no_factors(tmp_path: Path) -> None:
    """Three cells with more memory are three places: "3 × more memory" reads as three times the memory."""
    files = [
        bench_run(
            tmp_path / f"{factor}.json",
            *(timed_cell("a", n, steady(1e-3, n), memory_bytes=factor << 24) for n in LENGTHS),
            *([timed_cell("b", 128, steady(1e-3))] if factor == 1 else []),
        )
        for factor in (1, 2)
    ]
    assert pages.headline(between(*files)) == "WORSE: more memory (3), missing cell (1)"


def test_old_formats_are_of_one_machine_if_their_fields_agree(tmp_path: Path) -> None:
    """Without a fingerprint the machine's name, threads and so on decide."""
    base = bench_file(tmp_path / "a.json", cell("a", 128, median_ms=1.0, data=[1e-3] * 9))
    document = json.loads(base.read_text())
    document["machine_info"]["threads"] = {"OMP_NUM_THREADS": "8"}
    (tmp_path / "b.json").write_text(json.dumps(document))
    assert not between(base, base).unfit
    assert "threads.OMP_NUM_THREADS: 2 → 8" in between(base, tmp_path / "b.json").unfit[0]


def test_a_conformance_regression_is_told_across_machines_too(tmp_path: Path) -> None:
    """Right and wrong do not depend on the machine: worse is certain, although the times are not compared."""
    files = []
    for side, one in (("a", result("x", "c")), ("b", failed("x", "c"))):
        bench = run(tmp_path / f"{side}.json", 1, fingerprint=fingerprint(id=side, cpu=side))
        files.append([bench, conformance_file(tmp_path / f"{side}.jsonl", one)])
    assert compare(read(files[0]), read(files[1])).status is Status.WORSE


def test_a_yardstick_compares_two_machines(tmp_path: Path) -> None:
    """On a machine three times as slow an implementation that kept its ratio to the yardstick did not change."""
    there: dict[str, Any] = {"drift": 3.0, "fingerprint": fingerprint(id="ffff", cpu="slow")}
    base = run(tmp_path / "a.json", 1)
    same = between(base, run(tmp_path / "b.json", 2, **there), yardstick="a")
    worse = between(base, run(tmp_path / "c.json", 2, slow={"b": 1.5}, **there), yardstick="a")
    assert same.status is Status.NOTHING_WORSE
    assert verdicts(worse)["b"] == {"SLOWER"}
    assert not verdicts(worse)["a"]


def test_a_yardstick_that_was_not_run_cannot_tell(tmp_path: Path) -> None:
    """A misspelt name is reported, not an empty comparison."""
    found = between(run(tmp_path / "a.json", 1), run(tmp_path / "b.json", 2), yardstick="nobody")
    assert found.status is Status.CANNOT_TELL
    assert "nobody was not timed in both runs" in found.unfit[0]


def test_a_run_without_conformance_cannot_be_judged_on_it(tmp_path: Path) -> None:
    """If the base has results and the new run has none, "nothing worse" cannot be said."""
    bench = run(tmp_path / "b.json", 1)
    base = read([bench, conformance_file(tmp_path / "a.jsonl", result("x", "c"))])
    found = compare(base, read([bench]))
    assert found.status is Status.CANNOT_TELL
    assert found.unfit == ("the base has conformance results, the new run has none",)


def test_a_run_that_was_cut_off_misses_nothing_for_certain(tmp_path: Path) -> None:
    """Cases that it did not reach are unknown: status 2, and not worse."""
    base = conformance_file(tmp_path / "a.jsonl", result("x", "c"), result("x", "d"))
    new = conformance_file(tmp_path / "b.jsonl", result("x", "c"), result("x", "d"))
    new.write_text("".join(new.read_text().splitlines(keepends=True)[:2]))
    found = between(base, new)
    assert (found.status, found.changes) == (Status.CANNOT_TELL, ())


def test_other_versions_of_the_spec_are_not_compared(tmp_path: Path) -> None:
    """A case under another version of the spec is another case."""
    found = between(run(tmp_path / "a.json", 1), run(tmp_path / "b.json", 1, spec="2"))
    assert (found.status, found.speeds) == (Status.CANNOT_TELL, ())
    assert "1 → 2" in found.unfit[0]


def test_what_is_written_is_what_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Terminal, comment and JSON start with one verdict, and the status is the process's."""
    base, new = run(tmp_path / "a.json", 1), run(tmp_path / "b.json", 2, slow={"b": 1.25})
    options = ["--markdown", str(tmp_path / "o" / "c.md"), "--json", str(tmp_path / "o" / "c.json")]
    assert main(["compare", str(base), str(new), *options]) == 1
    assert capsys.readouterr().out.startswith(f"{FOUND}\n")
    assert (tmp_path / "o" / "c.md").read_text().startswith(f"### ❌ Attention: {FOUND}\n")
    found = json.loads((tmp_path / "o" / "c.json").read_text())
    assert (found["exit_status"], found["headline"], len(found["speeds"])) == (1, FOUND, 12)


def test_the_json_keeps_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The schema that is printed is valid, knows every change, and refuses a verdict that does not exist."""
    assert main(["schema", "comparison"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert set(schema["$defs"]["Kind"]["enum"]) == {kind.value for kind in Kind}
    files = [
        [run(tmp_path / f"{side}.json", 1, slow={"b": factor}), conformance_file(tmp_path / f"{side}.jsonl", one)]
        for side, factor, one in (("a", 1.0, result("x", "c")), ("b", 1.3, failed("x", "c")))
    ]
    found = json.loads(json.dumps(pages.document(compare(read(files[0]), read(files[1])))))
    jsonschema.validate(found, schema)
    found["speeds"][0]["verdict"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema)


def test_a_side_is_files_or_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A side is files with commas between them, or a folder; a folder without any file is an error of status 2."""
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
        run(tmp_path / side / "b.json", 1)
        conformance_file(tmp_path / side / "c.jsonl", result("x", "c"))
    commas = ",".join(str(tmp_path / "b" / name) for name in ("b.json", "c.jsonl"))
    assert main(["compare", str(tmp_path / "a"), commas]) == 0
    (tmp_path / "empty").mkdir()
    assert main(["compare", str(tmp_path / "empty"), commas]) == 2
    assert "has no result file" in capsys.readouterr().err


def test_a_side_may_name_many_files(tmp_path: Path) -> None:
    """A list that is longer than a path may be is not taken for a path."""
    (tmp_path / "a").mkdir()
    paths = [conformance_file(tmp_path / "a" / f"{at}{'x' * 60}.jsonl", result("x", f"c{at}")) for at in range(80)]
    assert main(["compare", str(tmp_path / "a"), ",".join(map(str, paths))]) == 0


@pytest.mark.parametrize("side", ["", ",", ",,"])
def test_a_side_without_a_file_is_an_error(
    side: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty variable of a script is not the current folder."""
    path = conformance_file(tmp_path / "a.jsonl", result("x", "c"))
    monkeypatch.chdir(tmp_path)
    assert main(["compare", side, str(path)]) == 2
    assert "no result file is named" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage is no regression."""
    (tmp_path / "b.json").write_text("{")
    assert main(["compare", str(run(tmp_path / "a.json", 1)), str(tmp_path / "b.json")]) == 2
    assert "b.json" in capsys.readouterr().err


def test_hostile_names_stay_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A comment has no tag, link or mention, and nothing that controls a terminal."""
    name = "<img src=x>[a](http://b)@octocat|x"  # control characters are no name: such a file is refused
    base, new = (
        conformance_file(tmp_path / f"{side}.jsonl", make(name, "c", reason=f"{name}\x1b[31m"))
        for side, make in (("a", result), ("b", failed))
    )
    assert main(["compare", str(base), str(new), "--markdown", str(tmp_path / "c.md")]) == 1
    comment = (tmp_path / "c.md").read_text()
    assert not any(bad in comment for bad in ("<img", "[a](", "@octocat"))
    assert "\x1b" not in comment + capsys.readouterr().out


def test_a_comment_fits_where_it_is_posted(tmp_path: Path) -> None:
    """For 3,000 changes it has the verdict and a count, within 65,536 bytes."""
    base, new = (
        conformance_file(tmp_path / f"{side}.jsonl", *(make(f"who{at}", "c", reason="é" * 99) for at in range(3000)))
        for side, make in (("a", result), ("b", failed))
    )
    main(["compare", str(base), str(new), "--markdown", str(tmp_path / "c.md")])
    assert len((tmp_path / "c.md").read_bytes()) < 65_536
    assert "new failure (3000)" in (tmp_path / "c.md").read_text()


def test_a_comment_of_many_files_and_reasons_fits_too(tmp_path: Path) -> None:
    """Hundreds of files with long names, most of them cut off, and as many notes and reasons: the first are shown."""
    source = read([conformance_file(tmp_path / "a.jsonl", result("x", "c"))]).sources[0]
    sources = tuple(replace(source, path=Path(f"{'é' * 100}{at}.jsonl")) for at in range(500))
    texts = tuple(f"{at} {'é<' * 5000}" for at in range(500))
    found = Comparison(sources, sources, (), (), unfit=texts, notes=texts)
    comment = pages.comment(found)
    assert len(comment.encode()) <= pages.LONGEST
    assert "**Cannot tell**: 0 é" in comment
    assert "**Cannot tell**: 490 more." in comment
    small = pages.comment(replace(found, unfit=(), notes=tuple("abc" * 5)))
    assert "\n\n5 more\n" in small
    assert "\n\n970 more files are in the JSON.\n" in small


def test_what_sees_more_is_offered_where_it_is_needed(tmp_path: Path) -> None:
    """The paired comparison; for one implementation also a second one; nothing where enough could be seen."""
    quiet = [run(tmp_path / f"{seed}.json", seed, names="abcdefgh") for seed in (1, 2)]
    assert "compare-revisions" not in pages.terminal(between(*quiet))
    one = [
        bench_run(tmp_path / f"one{at}.json", *(timed_cell("a", n, steady(1e-3, n + at)) for n in LENGTHS))
        for at in (0, 1)
    ]
    said = pages.terminal(between(*one))
    assert "would have been seen" in said
    assert "--across-machines NAME" in said
    assert "compare-revisions" in said
    assert "--threads" not in said


@pytest.mark.parametrize(("threads", "offered"), [(1, False), (2, True)])
def test_one_core_is_offered_to_runs_on_several(threads: int, offered: bool, tmp_path: Path) -> None:
    """It is offered where a change that counts could not have been seen."""
    two = [
        bench_run(
            tmp_path / f"{at}.json",
            *(timed_cell("a", n, steady(1e-3, n + at)) for n in LENGTHS),
            plan=plan(threads=threads),
        )
        for at in (0, 1)
    ]
    assert ("(--threads 1)" in pages.terminal(between(*two))) is offered
