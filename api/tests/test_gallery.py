"""The gallery: its manifest and adapters, the outcomes of entries, and the page.  Nothing is downloaded."""

from __future__ import annotations

import ast
import shlex
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from packaging.requirements import Requirement

from attention_conformance import gallery, upstream
from attention_conformance.cli import UNUSABLE, main, parser
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.gallery import InstallError
from attention_conformance.impls import compressed
from attention_conformance.impls import gallery as adapters
from attention_conformance.impls.contract import InputError
from attention_conformance.impls.gallery import Entry
from attention_conformance.impls.gallery.upstream import Upstream
from attention_conformance.impls.gallery.upstream import upstream as upstream_issues
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.reports.gallery import html, named
from attention_conformance.reports.gallery.stored import PUBLISHED, Record, Status
from attention_conformance.reports.tests.files import conformance_file, failed, result

ENTRIES = adapters.entries()
FOLDER = adapters.MANIFEST.parent

#: Module that a distribution is imported as, if it has another name.
IMPORTED = {
    "apache-tvm": "tvm",
    "dm-haiku": "haiku",
    "fair-esm": "esm",
    "ggml-python": "ggml",
    "iree-base-compiler": "iree",
    "open-clip-torch": "open_clip",
    "openai-whisper": "whisper",
    "paddlepaddle": "paddle",
}

#: Packages of arrays and models, which an adapter may import in addition to its own and the standard library.
ARRAYS = {"numpy", "torch", "jax", "onnx"}

RIGHT = """\
import numpy as np
def attention(q, k, v):
    s = q @ k.swapaxes(-1, -2) / q.shape[3] ** 0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True) @ v).astype(q.dtype)
"""
WRONG = RIGHT.replace("** 0.5", "** 0.4")
RAISES = "def attention(q, k, v):\n    raise RuntimeError('no usable devices')\n"
HANGS = "import time\ntime.sleep(600)\n"

#: Options of ``check`` for the entries of these tests: one case, which takes a moment.
WORDS = ("--dtype=float32", "--case=plain")


def entry(folder: Path, source: str = RIGHT, name: str = "local") -> Entry:
    """An entry whose package is NumPy, with an adapter in a folder."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return Entry(
        name=name,
        package="numpy",
        requires=("numpy==2.4.6",),
        adapter=f"{name}.py",
        function="attention",
        documentation={"*": "https://numpy.org"},
    )


def here(_: Entry, __: Path) -> Path:
    """An installer that does nothing and returns this interpreter."""
    return Path(sys.executable)


def no_installer(_: Entry, __: Path) -> Path:
    """An installer that must not be called."""
    raise AssertionError("installed again")


def stored(work: Path, one: Entry, status: Status = Status.JUDGED, seconds: float = 1.0) -> None:
    """Write a record into a work folder."""
    versions = {"Python": "3.11.7", "numpy": "2.4.6"} if status is Status.JUDGED else {}
    found = Record(name=one.name, status=status, requires=one.requires, adapter="", versions=versions, seconds=seconds)
    (work / f"{one.name}.json").write_bytes(msgspec.json.encode(found))


@pytest.mark.parametrize("name", ENTRIES)
def test_an_adapter_is_there(name: str) -> None:
    """The adapter's file exists and has the function that the manifest names."""
    one = ENTRIES[name]
    tree = ast.parse((FOLDER / one.adapter).read_text(encoding="utf-8"))
    assert one.function.partition("@")[0] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_adapter_imports_its_package_alone(name: str) -> None:
    """An adapter imports only its package, the standard library and its arrays' packages; the manifest has them all."""
    one = ENTRIES[name]
    tree = ast.parse((FOLDER / one.adapter).read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    outside = {each.partition(".")[0] for each in found} - sys.stdlib_module_names
    package = IMPORTED.get(one.package, one.package.replace("-", "_"))
    assert package in outside
    assert outside <= {package} | ARRAYS
    assert outside - {package, "numpy"} <= {Requirement(each).name for each in one.requires}


@pytest.mark.parametrize("name", ENTRIES)
def test_every_option_has_documentation(name: str) -> None:
    """Every option has an address or shares the common one, and no address is for an option that the adapter lacks."""
    one = ENTRIES[name]
    tree = ast.parse((FOLDER / one.adapter).read_text(encoding="utf-8"))
    wanted = one.function.partition("@")[0]
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == wanted)
    options = {argument.arg for argument in function.args.kwonlyargs}
    assert options <= set(OPERATORS[one.operator].keywords)
    assert "*" in one.documentation or set(one.documentation) == options
    assert set(one.documentation) <= options | {"*"}
    assert all(address.startswith("https://") for address in one.documentation.values())


def test_no_module_imports_an_adapter() -> None:
    """No module imports an adapter: adapters run in environments of their own."""
    rooms = Path(gallery.__file__).resolve().parents[1]
    for path in (
        path for room in ("api", "impls", "conformance", "bench", "reports") for path in rooms.glob(f"{room}/**/*.py")
    ):
        for one in ENTRIES.values():
            assert f"gallery.{one.adapter.removesuffix('.py')}" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(
    ("line", "by"),
    [
        ('requires = ["numpy==2.4.6"]', 'requires = ["numpy>=2"]'),
        ('package = "numpy"', 'package = "scipy"'),
        ('operator = "sdpa"', 'operator = "attention"'),
        ('operator = "sdpa"', 'operator = "sdpa"\nother = 1'),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused(tmp_path: Path, line: str, by: str) -> None:
    """Ranges of versions, unrequired packages, unknown operators or keys, and repeated names are refused."""
    text = (
        '[[entry]]\nname = "local"\npackage = "numpy"\nrequires = ["numpy==2.4.6"]\nadapter = "local.py"\n'
        'function = "attention"\noperator = "sdpa"\ndocumentation = { "*" = "https://numpy.org" }\n'
    )
    path = tmp_path / "gallery.toml"
    path.write_text(text, encoding="utf-8")
    assert list(adapters.entries(path)) == ["local"]
    path.write_text(text.replace(line, by), encoding="utf-8")
    with pytest.raises(adapters.ManifestError, match=r"gallery\.toml"):
        adapters.entries(path)
    path.write_text(text + text, encoding="utf-8")
    with pytest.raises(adapters.ManifestError, match="twice"):
        adapters.entries(path)


def test_an_unknown_name_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name is refused in one sentence, with the known names."""
    assert main(["gallery", "run", "other", "--work", str(tmp_path)]) == UNUSABLE
    assert "'other' is not an entry of the gallery; known: " in capsys.readouterr().err


def test_the_list_has_what_became_of_an_entry(tmp_path: Path) -> None:
    """The list has the status of an entry, and an empty cell for one that was not run."""
    one = entry(tmp_path)
    listed = gallery._list({"local": one}, tmp_path, tmp_path).splitlines()[-1].split()
    assert listed == ["local", "numpy==2.4.6", "sdpa"]
    stored(tmp_path, one, Status.NOT_INSTALLED)
    assert gallery._list({"local": one}, tmp_path, tmp_path).splitlines()[-1].endswith("not installed")


def test_a_failed_install_is_a_row(tmp_path: Path) -> None:
    """A failed install is a row with the installer's last line, and no error of the command."""
    one, other = entry(tmp_path), entry(tmp_path, name="other")

    def fails(_: Entry, __: Path) -> Path:
        gallery._output_of([sys.executable, "-c", "import sys; sys.exit('a line\\nERROR: no match for numpy')"], 60)
        return Path()

    found = gallery.judge(one, tmp_path, tmp_path, installer=fails)
    assert (found.status, found.message) == (Status.NOT_INSTALLED, "ERROR: no match for numpy")
    stored(tmp_path, other)
    conformance_file(tmp_path / "other.jsonl", result("other.py:attention", "plain"))
    page = gallery.page({"local": one, "other": other}, tmp_path)
    assert "**local**: not installed: ERROR: no match for numpy" in page


def test_a_program_that_is_missing_is_a_row(tmp_path: Path) -> None:
    """A missing program is named, and nothing is installed for the entry."""
    one = msgspec.structs.replace(entry(tmp_path), needs=("no-such-compiler",))
    found = gallery.judge(one, tmp_path, tmp_path)
    assert found.status is Status.NOT_INSTALLED
    assert found.message == "needs no-such-compiler, which no package of the registry has"


def test_the_cheap_ones_run_first(tmp_path: Path) -> None:
    """Entries run in the order of the time that they took before; entries that never ran come last."""
    some = [entry(tmp_path, name=name) for name in ("new", "dear", "cheap")]
    for one, seconds in zip(some[1:], (50.0, 5.0), strict=True):
        stored(tmp_path, one, seconds=seconds)
    assert [one.name for one in gallery.by_cost(some, tmp_path)] == ["cheap", "dear", "new"]


def test_another_python_is_a_row(tmp_path: Path) -> None:
    """A package that is not for this Python is not installed."""
    with pytest.raises(InstallError, match="needs Python <3"):
        gallery.install(msgspec.structs.replace(entry(tmp_path), python="<3"), tmp_path)


@pytest.mark.slow(15)
def test_the_last_line_of_pip_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of pip is kept, in an environment made by venv without uv; no registry is contacted.

    The constraints of this process do not apply to the entry.
    """
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("numpy==2.4.6\n", encoding="utf-8")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    one = msgspec.structs.replace(entry(tmp_path), requires=("numpy==0.0.1",))
    found = gallery.judge(one, tmp_path, tmp_path)
    assert found.status is Status.NOT_INSTALLED
    assert "No matching distribution found for numpy==0.0.1" in found.message


@pytest.mark.slow(10)
def test_what_is_judged_is_not_run_again(tmp_path: Path) -> None:
    """A judged entry is not run again until its requirements, its adapter or the options change."""
    one = entry(tmp_path)
    first = gallery.judge(one, tmp_path, tmp_path, WORDS, installer=here)
    assert first.status is Status.JUDGED
    assert first.versions["numpy"]
    assert gallery.judge(one, tmp_path, tmp_path, WORDS, installer=no_installer) == first
    for changed in (msgspec.structs.replace(one, requires=("numpy==2.4.5",)), entry(tmp_path, WRONG)):
        with pytest.raises(AssertionError, match="installed again"):
            gallery.judge(changed, tmp_path, tmp_path, WORDS, installer=no_installer)
    with pytest.raises(AssertionError, match="installed again"):
        gallery.judge(entry(tmp_path), tmp_path, tmp_path, installer=no_installer)


@pytest.mark.slow(10)
def test_a_wrong_result_is_red(tmp_path: Path) -> None:
    """A wrong result is marked in the first table and in its clause; the right one next to it is not."""
    some = {"right": entry(tmp_path, RIGHT, "right"), "wrong": entry(tmp_path, WRONG, "wrong")}
    for one in some.values():
        gallery.judge(one, tmp_path, tmp_path, WORDS, installer=here)
    rows = [line for line in gallery.page(some, tmp_path).splitlines() if line.startswith(("| right", "| wrong"))]
    assert ["**1**" in row for row in rows] == [False, True]
    assert ["✓" in row for row in rows] == [True, False]


@pytest.mark.slow(10)
@pytest.mark.parametrize("source", [RAISES, "raise RuntimeError('no usable devices')\n"], ids=["called", "imported"])
def test_what_raises_at_everything_is_not_judged(tmp_path: Path, source: str) -> None:
    """A library that raises for everything, such as one without a device, is broken, with its text but no paths.

    It has no failures and no passed cases, though an exception is right for an invalid input.
    """
    words = (*WORDS, "--case=invalid-lengths")
    found = gallery.judge(entry(tmp_path, source), tmp_path, tmp_path, words, installer=here)
    assert found.status is Status.BROKEN
    assert "no usable devices" in found.message
    assert str(tmp_path) not in found.message


@pytest.mark.slow(1)
def test_what_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    """An entry that takes too long is cut off, with the time in its message."""
    found = gallery.judge(entry(tmp_path, HANGS), tmp_path, tmp_path, WORDS, limit=1, installer=here)
    assert (found.status, found.message) == (Status.CUT_OFF, "after 1 s")


def test_the_page_is_made_of_stored_results(tmp_path: Path) -> None:
    """The page has stored results by the names of the manifest, with versions, and failures counted by kind."""
    one = entry(tmp_path)
    stored(tmp_path, one)
    target = one.target
    conformance_file(
        tmp_path / "local.jsonl",
        result(target, "plain"),
        failed(target, "empty-row", "SDPA-15", error_pattern="the mean of v"),
        result(target, "softcap", Outcome.UNSUPPORTED),
    )
    page = gallery.page({"local": one}, tmp_path)
    row = next(line for line in page.splitlines() if line.startswith("| local"))
    assert [cell.strip() for cell in row.split("|")][2:5] == ["numpy 2.4.6", "1", "✓"]
    assert "A row fully masked by a boolean mask: the mean of v (local)." in page
    assert "1 way to call attention, from 1 package: 0 conform to the spec" in page
    assert target not in page


@pytest.mark.slow(2)
def test_the_whole_report_is_made_on_request(tmp_path: Path) -> None:
    """The suite's report is made on request; badges and the gallery's pages always, with the manifest's names."""
    one = entry(tmp_path)
    stored(tmp_path, one)
    conformance_file(tmp_path / "local.jsonl", failed(one.target, "empty-row", "SDPA-15"))
    paths = gallery._page({"local": one}, tmp_path, tmp_path, None, publish=False, html=True).splitlines()
    assert [Path(path).name for path in paths] == ["badges", "report.html", "GALLERY.md", "index.html"]
    assert [path.name for path in (tmp_path / "badges").iterdir()] == ["local.svg"]
    assert one.target not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    """A damaged record is refused in one sentence that names it."""
    (tmp_path / "local.json").write_text('{"name": "local"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"local\.json"):
        gallery.page({"local": entry(tmp_path)}, tmp_path)
    with pytest.raises(InputError, match="no entry"):
        gallery.page({}, tmp_path)


def test_the_weekly_job_runs_all_of_it() -> None:
    """The job's commands are valid, and an entry that is not judged does not end it."""
    path = Path(gallery.__file__).resolve().parents[1] / ".github" / "workflows" / "gallery.yml"
    (job,) = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    lines = [step.get("run", "") for step in job["steps"]]
    words = [shlex.split(line.removesuffix(" || true"))[1:] for line in lines if line.startswith("attention-")]
    assert [parser(each).parse_args(each).action for each in words] == ["run", "page"]
    assert "'*'" in next(line for line in lines if "gallery run" in line and line.endswith("|| true"))


@pytest.mark.slow(2)
@pytest.mark.documents
def test_the_page_is_that_of_today() -> None:
    """The pages and the parts of README and DIAGNOSIS.md are as ``attention-conformance gallery page`` makes them."""
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page(ENTRIES, PUBLISHED)
    view = gallery._view(ENTRIES, PUBLISHED)
    assert (PUBLISHED / gallery.INDEX).read_text(encoding="utf-8") == html.page(view)
    assert f"<!-- gallery --> {gallery.sentence(view)} <!-- end of gallery -->" in gallery.README.read_text(
        encoding="utf-8"
    )
    block = f"<!-- gallery -->\n{gallery.measure(view)}\n<!-- end of gallery -->"
    assert block in gallery.DIAGNOSIS.read_text(encoding="utf-8")


def test_what_is_judged_of_the_diagnosis_is_so() -> None:
    """Every cause that is said to be named is named in the published results, and all of their diagnoses are judged."""
    assert named.problems(gallery._view(ENTRIES, PUBLISHED)) == []


#: Bytes that the results of an entry may take, and its part of the page: 400,000 for the first 57.
BYTES = 7_000


def test_the_published_results_are_small() -> None:
    """The tracked results are small, and have no path of the machine that they were made on."""
    paths = list(PUBLISHED.rglob("*.zst"))
    kept = [compressed.read(path, 1 << 24).decode() for path in paths]
    assert not [text for text in kept if "site-packages" in text]
    assert sum(path.stat().st_size for path in paths) < BYTES * len(ENTRIES)
    assert (PUBLISHED / gallery.INDEX).stat().st_size < BYTES * len(ENTRIES)


ISSUES = upstream_issues()

#: An issue whose script needs nothing: what it prints, claims and ends with.
ISSUE = Upstream(
    upstream="unreported",
    searched="one and two",
    entry="local",
    title="One is not two",
    link="https://example.org",
    promise="one",
    script="got = 1\nprint('got', got)\nassert got == 2\n",
    claim="got == 1",
)


@pytest.mark.parametrize("name", ISSUES)
def test_an_upstream_issue_is_complete(name: str) -> None:
    """An issue has a thread or none, what was searched, and its entry's script and claim, or the ledger's."""
    one = ISSUES[name]
    assert one.upstream == "unreported" or one.upstream.startswith("https://")
    assert one.searched
    found = upstream.issue(name, one)
    assert found.title
    assert found.promise
    assert found.link.startswith("https://")
    assert one.entry in ENTRIES if one.entry else not one.script
    assert "attention_conformance" not in found.script
    assert max(map(len, found.script.splitlines())) <= 120


def test_the_published_upstream_issues_are_those_of_the_file() -> None:
    """Each issue has one text with the title and the script of the file, and the index has all."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in upstream.FOLDER.glob("*.md")}
    assert texts.pop("README") == upstream.index(ENTRIES)
    assert texts.keys() == ISSUES.keys()
    for name, one in ISSUES.items():
        found = upstream.issue(name, one)
        assert texts[name].startswith(f"# {found.title}\n")
        assert found.script.rstrip() in texts[name]


def test_the_text_of_an_upstream_issue_has_what_came() -> None:
    """The text has the output of the given interpreter, and the named versions."""
    text = upstream.written("one", ISSUE, sys.executable, "numpy 2.4.6")
    assert "What comes:\n\n```\ngot 1\n" in text
    assert "Versions: numpy 2.4.6, Python" in text


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"script": "got = 2\n"}, "right, nothing to report"),
        ({"claim": "got == 3"}, "its claim does not hold"),
        ({"script": "raise ImportError('no module')\n"}, "its claim does not hold"),
    ],
)
def test_an_upstream_issue_that_is_not_so_is_refused(changed: dict[str, str], why: str) -> None:
    """An issue is refused if its script is right, contradicts the title, or fails before it shows anything."""
    with pytest.raises(InputError, match=why):
        upstream.written("one", msgspec.structs.replace(ISSUE, **changed), sys.executable, "numpy 2.4.6")
