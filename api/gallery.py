"""``attention-conformance gallery``: judge libraries, each in an environment of its own, and make a page of them.

``run`` makes an environment from an entry's requirements and judges the adapter there as ``check`` does, with this very
suite: the environment gets what the suite needs, but not the suite.  The outcome of an entry is kept in the work
folder, ``NAME.json`` and ``NAME.jsonl``, from which ``page`` makes the pages.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from tabulate import tabulate

from attention_conformance.conformance import results as result_file
from attention_conformance.conformance.judging.outcomes import EXECUTED, Failure
from attention_conformance.impls.checkout import writable
from attention_conformance.impls.contract import InputError
from attention_conformance.impls.gallery import MANIFEST, Entry, entries
from attention_conformance.impls.process import worker
from attention_conformance.impls.process.pool import packages
from attention_conformance.reports.gallery.stored import DEFAULT, PUBLISHED, Record, Status, record

if TYPE_CHECKING:
    from attention_conformance.reports.gallery.view import View

#: Seconds that an entry may take without its installation, and that the installation may take.
LIMIT = 240.0
INSTALLING = 1200.0

#: Constraints of this process's user: an environment has the versions of the manifest instead.
_CONSTRAINTS = {"PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "UV_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_OVERRIDE"}

#: The fields of a record that decide whether an entry is run again.
_DECIDE = ("status", "requires", "adapter", "options")

#: The Markdown page, the HTML page, and the documents that have a sentence (README) and a table (DIAGNOSIS.md).
PAGE = MANIFEST.parents[1] / "GALLERY.md"
INDEX = "index.html"
README = MANIFEST.parents[2] / "README.md"
DIAGNOSIS = MANIFEST.parents[2] / "conformance" / "DIAGNOSIS.md"
_ROW = re.compile(r"(?<=<!-- gallery -->).*?(?=<!-- end of gallery -->)", re.DOTALL)

#: Starts this suite in another environment: it is imported from its own folders, as in a worker.
_START = """\
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
worker.import_packages(json.loads(sys.argv[2]))
from attention_conformance.cli import main
sys.exit(main(sys.argv[3:]))
"""

#: Prints the versions of distributions, and of Python.
_VERSIONS = """\
import importlib.metadata, json, platform, sys
found = {name: importlib.metadata.version(name) for name in sys.argv[1:]}
print(json.dumps({"Python": platform.python_version(), **found}))
"""


class InstallError(Exception):
    """An environment that cannot be made; the text is the installer's last line."""


def options(parser: argparse.ArgumentParser) -> None:
    """Options of the four actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    list_ = actions.add_parser("list", help="print the entries with their versions and status")
    run_ = actions.add_parser("run", help="install and judge entries, except those already judged")
    page_ = actions.add_parser("page", help="write the page of a work folder: libraries by clause, with their answers")
    run_.add_argument("names", nargs="+", metavar="NAME", help="names or globs, such as 'flax-*'")
    run_.add_argument(
        "--limit", type=float, default=LIMIT, metavar="SECONDS", help="for one entry (default: %(default)s)"
    )
    run_.add_argument("--dtype", action="append", metavar="NAME", help="as for `check` (default: float32)")
    run_.add_argument("--case", action="append", default=[], metavar="GLOB", help="only these cases")
    run_.add_argument(
        "--constraint", type=Path, metavar="FILE", help="pip constraints for packages that are not in the manifest"
    )
    issue_ = actions.add_parser("issue", help="write the texts of upstream issues, each from a run of its script")
    issue_.add_argument("names", nargs="+", metavar="NAME", help="names in impls/gallery/issues.toml, or globs")
    issue_.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="write NAME.md and an index to this folder")
    for each in (list_, run_, issue_):
        each.add_argument("--work", type=Path, default=Path("gallery"), metavar="FOLDER", help="(default: %(default)s)")
    for each in (list_, run_, page_, issue_):
        each.add_argument("--manifest", type=Path, default=MANIFEST, metavar="FILE", help="default: the suite's own")
    page_.add_argument(
        "work", nargs="?", type=Path, metavar="FOLDER", help="default: the published results of the suite's gallery"
    )
    page_.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: GALLERY.md in that folder")
    page_.add_argument("--html", action="store_true", help="also report.html, the suite's own report of all of them")
    page_.add_argument(
        "--publish", action="store_true", help="keep the results in reports/published/gallery and make impls/GALLERY.md"
    )


def run(action: str, manifest: Path, **given: object) -> str | tuple[str, int]:
    """Run one of the actions.  Raises InputError for a manifest, a name or a result that cannot be used."""
    known = entries(manifest)
    return ACTIONS[action](known, manifest.parent, **given)


def _list(known: dict[str, Entry], folder: Path, work: Path) -> str:
    rows = []
    for entry in known.values():
        found = record(work, entry.name)
        rows.append((entry.name, " ".join(entry.requires), entry.operator, found.status.value if found else ""))
    return tabulate(rows, ("name", "packages", "operator", "status"), tablefmt="simple", disable_numparse=True)


def _run(
    known: dict[str, Entry],
    folder: Path,
    names: Sequence[str],
    work: Path,
    limit: float,
    dtype: Sequence[str] | None,
    case: Sequence[str],
    constraint: Path | None,
) -> tuple[str, int]:
    """Judge entries; 0 if all of them were judged, whatever their results, and 1 if one was not."""
    unknown = [name for name in names if not any(fnmatch(each, name) for each in known)]
    if unknown:
        raise InputError(f"{unknown[0]!r} is not an entry of the gallery; known: {', '.join(known)}")
    words = [*([f"--dtype={each}" for each in dtype] if dtype else DEFAULT), *(f"--case={each}" for each in case)]
    done = []
    for entry in by_cost(list(known.values()), work):
        if any(fnmatch(entry.name, name) for name in names):
            found = judge(entry, folder, work, words, limit, lambda e, f: install(e, f, constraint))
            done.append(found)
            print(f"{found.name}: {found.status.value}, {found.seconds:.0f} s {found.message}".rstrip(), flush=True)
    return "", int(any(each.status is not Status.JUDGED for each in done))


def by_cost(some: Sequence[Entry], work: Path) -> list[Entry]:
    """Entries by the seconds that each took here, or where the published results were made; unknown ones come last."""
    found = {entry.name: record(work, entry.name) or record(PUBLISHED, entry.name) for entry in some}
    seconds = {name: each.seconds if each and each.seconds else float("inf") for name, each in found.items()}
    return sorted(some, key=lambda entry: seconds[entry.name])


def judge(
    entry: Entry,
    folder: Path,
    work: Path,
    words: Sequence[str] = DEFAULT,
    limit: float = LIMIT,
    installer: Callable[[Entry, Path], Path] | None = None,
) -> Record:
    """Install and judge an entry, unless that was done with the same requirements, adapter and options.

    Parameters
    ----------
    entry : what is judged.
    folder : of its adapter.
    work : folder of environments, records and result files, made if missing.
    words : options of ``check``.
    limit : seconds for judging, after which it is cut off.
    installer : makes the environment of an entry in a folder, and returns its interpreter; default: ``install``.

    Returns
    -------
    Record
        Record of the run, which is written to the work folder, too.
    """
    work = work.absolute()
    digest = hashlib.sha256((folder / entry.adapter).read_bytes()).hexdigest()
    before = record(work, entry.name)
    wanted = Record(
        name=entry.name, status=Status.JUDGED, requires=entry.requires, adapter=digest, options=tuple(words)
    )
    if before and all(getattr(before, each) == getattr(wanted, each) for each in _DECIDE):
        return before
    work.mkdir(parents=True, exist_ok=True)
    versions: dict[str, str] = {}
    started = time.monotonic()
    try:
        python = (installer or install)(entry, work / "environments")
        required = [Requirement(each).name for each in entry.requires]
        versions = json.loads(_output_of([str(python), "-c", _VERSIONS, *required], INSTALLING))
        started = time.monotonic()
        status, message = _run_check(entry, folder, work, words, limit, python)
    except InstallError as error:
        status, message = Status.NOT_INSTALLED, str(error)
    seconds = round(time.monotonic() - started, 1)
    found = msgspec.structs.replace(wanted, status=status, seconds=seconds, versions=versions, message=message)
    (work / f"{entry.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return found


def _run_check(
    entry: Entry, folder: Path, work: Path, words: Sequence[str], limit: float, python: Path
) -> tuple[Status, str]:
    """Run ``check`` with another interpreter, in the folder of the adapter."""
    results = work / f"{entry.name}.jsonl"
    results.unlink(missing_ok=True)
    command = [str(python), "-P", "-c", _START, str(worker.__file__), json.dumps(packages()), "check", entry.target]
    command += [*words, f"--conformance-json={results}", f"--scripts={work / 'scripts' / entry.name}", "-q"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with (work / f"{entry.name}.log").open("wb") as said:
        process = subprocess.Popen(  # noqa: S603  (this suite, in an environment that was just made)
            command, cwd=folder, env={**variables, **entry.variables}, stdout=said, stderr=said, start_new_session=True
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return Status.CUT_OFF, f"after {limit:.0f} s"
        except BaseException:  # Ctrl-C: the process has a session of its own, which the terminal does not interrupt
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if process.returncode in (0, 1) and results.exists():
        ran = result_file.read(results).results
        executed = [each for each in ran if each.outcome in EXECUTED]
        if any(each.share is not None or each.failure not in (None, Failure.ERROR) for each in executed):
            return Status.JUDGED, ""
        if executed:  # it raises for every input, which passes where the input is invalid
            return Status.BROKEN, next((_last(r.reason) for r in executed if r.reason), "")
    log = (work / f"{entry.name}.log").read_text(encoding="utf-8", errors="replace")
    return Status.BROKEN, _last(log).replace(f"{folder}{os.sep}", "")


def install(entry: Entry, folder: Path, constraint: Path | None = None) -> Path:
    """Make the environment of an entry, with uv if there is one, else with venv and pip; return its interpreter.

    Entries with the same requirements share an environment.  Raises InstallError with the installer's last line.
    """
    missing = [name for name in entry.needs if shutil.which(name) is None]
    if missing:
        raise InstallError(f"needs {', '.join(missing)}, which no package of the registry has")
    if not SpecifierSet(entry.python).contains(platform.python_version(), prereleases=True):
        raise InstallError(f"needs Python {entry.python}, and this is {platform.python_version()}")
    wanted = [*entry.requires, *needed()]
    place = folder / hashlib.sha256("\n".join([*wanted, platform.python_version()]).encode()).hexdigest()[:12]
    python = place / "bin" / "python"
    ready = place / "ready"
    if ready.exists():
        return python
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if uv:
        _output_of([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(place)], INSTALLING)
        pip = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        _output_of([sys.executable, "-m", "venv", "--clear", str(place)], INSTALLING)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _output_of([*pip, *(["-c", str(constraint)] if constraint else []), *wanted], INSTALLING)
    ready.touch()
    return python


def needed() -> list[str]:
    """Requirements of the suite's core, as its own distribution says."""
    found = map(Requirement, importlib.metadata.requires("attention-conformance") or ())
    return [str(each) for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]


def _output_of(command: Sequence[str], timeout: float) -> str:
    """The standard output of a command.  Raises InstallError with its last line if it fails."""
    variables = {name: value for name, value in os.environ.items() if name not in _CONSTRAINTS}
    try:
        done = subprocess.run(  # noqa: S603  (an installer or interpreter, with arguments that are no shell's)
            command, capture_output=True, text=True, check=False, timeout=timeout, env=variables
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"not installed after {timeout:.0f} s") from None
    if done.returncode:
        raise InstallError(_last(done.stderr or done.stdout))
    return done.stdout


def _last(text: str) -> str:
    """The last line that reports an error as pip and pytest do, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
    return next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])


def _page(
    known: dict[str, Entry], folder: Path, work: Path | None, output: Path | None, publish: bool, html: bool
) -> str:
    """Write the pages of a work folder, or of what is published; return the paths of what was written.

    After the paths come the manifest's judgements that the published diagnoses do not bear out, and the missing ones.
    """
    writable(output or (PAGE if work is None or publish else work / PAGE.name))
    from attention_conformance.reports.gallery import html as as_html
    from attention_conformance.reports.gallery import markdown, named, stored

    if publish:
        if work is None:
            raise InputError("--publish needs the work folder whose results to keep")
        stored.keep(known, work)
        work = None
    place = work or PUBLISHED
    view = _view(known, place)
    target = output or (PAGE if work is None else work / PAGE.name)
    texts = {target: markdown.page(view), (place if output is None else output.parent) / INDEX: as_html.page(view)}
    if work is None and output is None and README.exists():
        texts[README] = _with(README, f" {sentence(view)} ")
        texts[DIAGNOSIS] = _with(DIAGNOSIS, f"\n{measure(view)}\n")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    problems = [] if work or output else named.problems(view)
    return "\n".join(
        map(str, [*_write_reports(known, place, target.parent if work else place, html), *texts, *problems])
    )


def _with(path: Path, block: str) -> str:
    """A document with its part about the gallery regenerated."""
    return _ROW.sub(lambda _: block, path.read_text(encoding="utf-8"))


def _write_reports(known: dict[str, Entry], place: Path, folder: Path, html: bool) -> list[Path]:
    """Write the badges, and on request the report with every message."""
    from attention_conformance.reports.gallery import stored, view
    from attention_conformance.reports.outputs import written

    _, model = stored.model(known, place)
    return written(view.without_choices(known, model), folder, ("badges", *(["html"] if html else [])))


def _issue(
    known: dict[str, Entry], folder: Path, names: Sequence[str], work: Path, output: Path | None
) -> str | tuple[str, int]:
    """Write or print texts of upstream issues; 1 if one cannot be written, with the reason."""
    from attention_conformance import upstream

    texts, refused = {}, []
    for name, one in upstream.chosen(names).items():
        try:
            if one.entry:
                entry = known[one.entry]
                python = install(entry, work.absolute() / "environments")
                required = [Requirement(each).name for each in entry.requires]
                versions = json.loads(_output_of([str(python), "-c", _VERSIONS, *required], INSTALLING))
                named = ", ".join(f"{each} {versions[each]}" for each in required)
            else:
                python, named = Path(sys.executable), ""
            texts[f"{name}.md"] = upstream.written(name, one, str(python), named)
        except (InputError, InstallError) as error:
            refused.append(str(error))
    if output is None:
        return "\n".join([*texts.values(), *refused]), int(bool(refused))
    output.mkdir(parents=True, exist_ok=True)
    for name, text in (texts | {upstream.INDEX: upstream.index(known)}).items():
        (output / name).write_text(text, encoding="utf-8")
    return "\n".join([*(str(output / name) for name in texts), *refused]), int(bool(refused))


def page(known: Mapping[str, Entry], work: Path) -> str:
    """The Markdown page of the entries that a folder has a record of.

    Raises InputError for a record or a result file that cannot be used, and where there is none.
    """
    from attention_conformance.reports.gallery import markdown

    return markdown.page(_view(known, work))


def _view(known: Mapping[str, Entry], work: Path) -> View:
    from attention_conformance.reports.gallery import stored, view

    found, model = stored.model(known, work)
    return view.view(known, found, model, work)


def sentence(view: View) -> str:
    """Sentence of the README: the numbers, and the three most serious findings."""
    from attention_conformance.reports.gallery import html, markdown

    return f"{html.verdict(view)} The three most serious: {markdown.gravest(view)}."


def measure(view: View) -> str:
    """Table of DIAGNOSIS.md: how many causes of the gallery the diagnosis names."""
    from attention_conformance.reports.gallery import named

    return named.table(named.measured(view))


ACTIONS: dict[str, Callable[..., str | tuple[str, int]]] = {"list": _list, "run": _run, "page": _page, "issue": _issue}
