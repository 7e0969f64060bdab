"""The commands as a user types them: plug in a file, read the outcome, the messages and the result file."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attention_conformance.conformance.cases import few_kernel_cases, kernels
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.plugin import cases_for
from attention_conformance.conformance.results import read
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests.interrupts import interrupt, interruptible
from attention_conformance.impls.select import builtin
from attention_conformance.impls.tests import commands

pytestmark = pytest.mark.slow(40)

RIGHT = """
import numpy as np

def attention(q, k, v, *, mask=None, is_causal=False, scale=None):
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError("q, k and v differ in dtype")
    _, heads, keys, _ = k.shape
    group = q.shape[1] // heads
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    allowed = np.broadcast_to(True if mask is None else mask, s.shape)
    if is_causal:
        allowed = allowed & (np.arange(keys) <= np.arange(q.shape[2])[:, None] + PEEK)
    s = np.where(allowed, s, -np.inf)
    top = np.max(s, -1, keepdims=True, initial=-1e30)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    return (p / np.where(total == 0, 1, total) @ v).astype(q.dtype)

attention.dtypes = ("float32",)
PEEK = 0
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``pytest conformance …`` in a folder."""
    command = [sys.executable, "-m", "pytest", "conformance", "-q", "-p", "no:cacheprovider", *arguments]
    return commands.run(command, cwd=folder)


def plug_in(folder: Path, text: str = RIGHT) -> Path:
    """A folder that holds nothing but a user's kernel."""
    (folder / "mykernels.py").write_text(text)
    return folder


def test_a_right_function_passes(tmp_path: Path) -> None:
    """A correct function of a dozen lines passes everything that its signature promises, from any folder."""
    command = [sys.executable, "-m", "pytest", "conformance", "-q", "--impl", "mykernels.py:attention"]
    done = subprocess.run(
        [*command, "--conformance-json", "out.jsonl"],
        cwd=plug_in(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    results = read(tmp_path / "out.jsonl")
    assert results.complete
    outcomes = {r.outcome for r in results.results}
    assert outcomes <= {Outcome.PASSED, Outcome.UNSUPPORTED, Outcome.ADVISORY}
    assert sum(r.outcome is Outcome.PASSED for r in results.results) > 100
    assert "mykernels.py:attention  cpu" in done.stdout


def test_a_peek_of_one_key_fails_with_its_clause(tmp_path: Path) -> None:
    """A causal mask that peeks one key ahead fails, and the message names clause and worst element."""
    text = RIGHT.replace("PEEK = 0", "PEEK = 1")
    done = run(plug_in(tmp_path, text), "--impl", "mykernels.py:attention", "--case", "causal-*")
    assert done.returncode == 1
    assert "SDPA-9 · Causal (MUST): With `is_causal`, query row i may attend to key j only if" in done.stdout
    assert "Worst:    output[" in done.stdout
    assert "Rerun:    attention-conformance check mykernels.py:attention --device cpu" in done.stdout


def test_only_failures_cost_the_import_of_faults() -> None:
    """Faults, a third of the plugin's import time, are imported only when there is a failure."""
    code = "import sys, attention_conformance.conformance.plugin; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "attention_conformance.conformance.run.recorder" in modules
    heavy = ("torch", "jax", "onnx", "hypothesis")
    assert not [name for name in modules if ".faults" in name or name.startswith(heavy)]


def test_the_command_runs_without_a_warning(tmp_path: Path) -> None:
    """``attention-conformance check`` imports no plugin before pytest, which would warn about it."""
    command = [sys.executable, "-m", "attention_conformance", "check", "mykernels.py:attention", "--case", "plain"]
    done = subprocess.run(command, cwd=plug_in(tmp_path), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "warning" not in f"{done.stdout}{done.stderr}".lower()


def test_a_module_of_the_folder_is_found(tmp_path: Path) -> None:
    """``package.module:function`` works from the folder that holds the package."""
    plug_in(tmp_path)
    done = run(tmp_path, "--impl", "mykernels:attention", "--case", "plain*")
    assert done.returncode == 0, done.stdout


def test_in_process_gives_the_same(tmp_path: Path) -> None:
    """For a debugger, cases run in pytest's own process."""
    done = run(plug_in(tmp_path), "--impl", "mykernels.py:attention", "--in-process", "--case", "plain*")
    assert done.returncode == 0, done.stdout


def test_a_crash_is_an_outcome_and_the_run_goes_on(tmp_path: Path) -> None:
    """A kernel that kills its process for one query fails those cases, and the others pass."""
    text = RIGHT.replace("    _, heads,", "    if q.shape[2] == 1:\n        __import__('os').abort()\n    _, heads,")
    options = (
        "--impl",
        "mykernels.py:attention",
        "--case",
        "plain*",
        "--case",
        "one-*",
        "--conformance-json",
        "o.jsonl",
    )
    done = run(plug_in(tmp_path, text), *options)
    assert done.returncode == 1
    assert "killed by SIGABRT" in done.stdout
    by_case = {r.case: r.outcome for r in read(tmp_path / "o.jsonl").results}
    assert by_case["one-query"] is Outcome.FAILED
    assert by_case["one-key"] is Outcome.PASSED
    assert by_case["plain"] is Outcome.PASSED


def test_a_hang_is_an_outcome(tmp_path: Path) -> None:
    """A kernel that never returns is a timeout of that case."""
    text = RIGHT.replace("    _, heads,", "    while q.shape[2] == 1:\n        pass\n    _, heads,")
    options = ("--impl", "mykernels.py:attention", "--case", "one-query", "--case", "plain", "--case-timeout", "2")
    done = run(plug_in(tmp_path, text), *options)
    assert done.returncode == 1
    assert "wrong by timeout" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_a_run_that_is_interrupted_keeps_its_results(tmp_path: Path) -> None:
    """Ctrl-C ends the run at once; the result file holds what was judged, and no footer."""
    text = RIGHT.replace("    _, heads,", "    while q.shape[2] == 1:\n        pass\n    _, heads,")
    plug_in(tmp_path, text)
    command = [sys.executable, "-m", "pytest", "conformance", "-q", "--impl", "mykernels.py:attention"]
    options = ["--case", "plain*", "--case", "one-query", "--conformance-json", "o.jsonl"]
    with interruptible([*command, *options], tmp_path, stdout=subprocess.DEVNULL) as process:
        written = tmp_path / "o.jsonl"
        while not written.exists() or written.read_text().count("\n") < 4:  # the header and three results
            assert process.poll() is None
            time.sleep(0.1)
        assert interrupt(process) == pytest.ExitCode.INTERRUPTED
    assert not read(written).complete


def test_a_run_that_executed_nothing_fails(tmp_path: Path) -> None:
    """If every case is unsupported, nothing is known, and the run says so."""
    text = "def attention(q, k, v):\n    raise NotImplementedError('later')\n"
    done = run(plug_in(tmp_path, text), "--impl", "mykernels.py:attention", "--case", "plain*")
    assert done.returncode == 1
    assert "nothing was executed" in done.stdout


def test_a_missing_framework_is_not_an_error(tmp_path: Path) -> None:
    """An implementation whose package is missing is shown as not installed, and the others are judged."""
    (tmp_path / "hide.py").write_text(
        "import importlib.util\nfound = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'jax' else found(name, *rest)\n"
    )
    done = run(
        tmp_path, "-p", "hide", "--impl", "numpy-eager", "--impl", "jax-*", "--case", "plain", "--dtype", "float32"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not installed: jax" in done.stdout


def test_frameworks_that_are_not_selected_are_not_imported(tmp_path: Path) -> None:
    """Judging a NumPy function imports no other framework, even in the process that runs it."""
    (tmp_path / "look.py").write_text(
        "import sys\ndef pytest_unconfigure():\n"
        "    print('imported:', sorted({'torch', 'jax', 'onnx', 'onnxruntime'} & set(sys.modules)))\n"
    )
    done = run(tmp_path, "-p", "look", "--in-process", "--impl", "numpy-eager", "--case", "plain")
    assert done.returncode == 0, done.stdout
    assert "imported: []" in done.stdout


def test_a_run_with_nothing_installed_fails(tmp_path: Path) -> None:
    """If no selected implementation is installed, nothing was judged, and the run says so and fails."""
    (tmp_path / "hide.py").write_text(
        "import importlib.util\nfound = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'jax' else found(name, *rest)\n"
    )
    done = run(tmp_path, "-p", "hide", "--impl", "jax-*")
    assert done.returncode == 1, done.stdout
    assert "not installed: jax" in done.stdout
    assert "nothing was executed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--impl", "numpy-egaer"), "unknown implementation 'numpy-egaer'; did you mean numpy-eager"),
        (("--impl", "absent.py:attention"), "no file absent.py, looked for at"),
        (("--impl", "mykernels.py:atention"), "has no function 'atention'; did you mean attention?"),
        (("--impl", "mykernels.py:attention@troch"), "unknown framework 'troch'; did you mean torch or triton?"),
        (("--impl", "mykernels.py:one"), "takes 1 positional argument(s); expected (q, k, v, *, …)"),
        (("--impl", "broken.py:attention"), "raised SyntaxError"),
        (("--impl", "numpy-eager", "--dtype", "float31"), "--dtype float31: unknown; did you mean float32"),
        (("--impl", "numpy-eager", "--device", "gpu"), "--device gpu: unknown"),
        (("--impl", "numpy-eager", "--case", "plian"), "--case plian: no such case; did you mean plain"),
    ],
)
def test_bad_input_gives_one_clear_sentence(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    """A selection that cannot be used is refused with what was expected, and nothing else is printed."""
    plug_in(tmp_path, RIGHT + "\ndef one(x):\n    return x\n")
    (tmp_path / "broken.py").write_text("def attention(:\n")
    done = run(tmp_path, *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def rounded(text: str) -> str:
    """A text with single spaces, and its numbers cut to the digits on which all processors agree."""
    return re.sub(r"(\d\.\d{3})\d+", r"\1", " ".join(text.split()))


def test_the_readme_shows_what_happens(tmp_path: Path) -> None:
    """The function on the README's first screen, run by the command there, gives the message printed below it."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (kernel,) = re.findall(r"```python\n# mykernels\.py\n(.*?)```", readme, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", readme, re.DOTALL)
    assert "$ attention-conformance check mykernels.py:attention --dtype float32\n" in readme
    done = run(plug_in(tmp_path, kernel), "--impl", "mykernels.py:attention", "--dtype", "float32")
    assert done.returncode == 1
    printed = rounded(done.stdout)
    for part in shown.split("…\n"):
        assert rounded(part) in printed
    assert len(done.stdout[done.stdout.index("= conformance =") :].splitlines()) <= 20


def test_the_readme_function_is_right_but_for_the_peek(tmp_path: Path) -> None:
    """Without its deliberate mistake the README's function passes, and has the claim that the README states."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (kernel,) = re.findall(r"```python\n# mykernels\.py\n(.*?)```", readme, re.DOTALL)
    right = kernel.replace("[:, None] + 1,", "[:, None],")
    assert right != kernel
    done = run(plug_in(tmp_path, right), "--impl", "mykernels.py:attention", "--dtype", "float32")
    assert done.returncode == 0, done.stdout
    (claim,) = re.findall(r"`(conformant to [^`]*), …`", readme)
    assert claim in " ".join(done.stdout.split())


def test_what_is_quick_is_judged_first_and_the_file_is_in_order(tmp_path: Path) -> None:
    """An implementation that is traced for each case runs last; the file has the order of the command line."""
    asked = ("--impl", "torch-flex", "--impl", "torch-eager", "--case", "plain", "--dtype", "float32")
    done = run(tmp_path, *asked, "-vv", "--conformance-json", "o.jsonl")
    assert done.returncode == 0, done.stdout
    assert done.stdout.index("[torch-eager-") < done.stdout.index("[torch-flex-")
    assert [r.implementation for r in read(tmp_path / "o.jsonl").results] == ["torch-flex", "torch-eager"]


#: A run that reports progress after every case, and a first table whatever follows it.
TELLING = """
import sys, pytest
from attention_conformance.conformance.run import recorder
recorder.EVERY = recorder.WORTH_A_TABLE = 0.0
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_progress_and_a_first_table_are_told(tmp_path: Path) -> None:
    """Progress lines appear between the tests; quick implementations have a table before compiled ones run."""
    asked = ("--impl", "torch-flex", "--impl", "torch-eager", "--case", "plain", "--dtype", "float32")
    command = [sys.executable, "-c", TELLING, "conformance", "-q", "-p", "no:cacheprovider", *asked]
    done = commands.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert "2 passed" in lines[-1]
    assert any(re.match(r"\d of 2 results", line) for line in lines)
    first = lines.index("so far:")
    assert lines[first + 3].split()[:3] == ["torch-eager", "cpu", "1"]
    assert "still to come: torch-flex" in lines


def test_a_quick_run_says_what_it_left_out(tmp_path: Path) -> None:
    """A named implementation runs only the cases of the list, and the number of the others is printed."""
    from attention_conformance.conformance.cases import every_case, quick_cases

    done = run(tmp_path, "--impl", "numpy-sublayer", "--quick", "--conformance-json", "o.jsonl")
    assert done.returncode == 0, done.stdout
    asked = {result.case for result in read(tmp_path / "o.jsonl").results}
    assert asked == {name for name, case in quick_cases().items() if case.operator == "sublayer"}
    assert f"the other {len(every_case()) - len(quick_cases())} were not run" in done.stdout
    assert "as each case is compiled" not in done.stdout


def test_a_quick_run_leaves_out_what_is_compiled(tmp_path: Path) -> None:
    """Without names the built-ins that compile or export each case are left out, and listed."""
    done = run(tmp_path, "--quick", "--case", "plain", "--case", "combined-all", "--dtype", "float32")
    assert done.returncode == 0, done.stdout
    left_out = done.stdout.partition("as each case is compiled or exported: ")[2].partition("\n")[0].split(", ")
    assert {"jax-jit", "torch-flex", "onnx-export23-torch-eager"} <= set(left_out)
    rows = {line.partition(" ")[0] for line in done.stdout.splitlines()}
    assert "torch-eager" in rows
    assert not rows & set(left_out)


def test_built_ins_that_compile_nothing_are_asked_a_few_cases_at_the_sizes_of_kernels() -> None:
    """Built-ins that compile nothing run the few cases in each dtype; others run them only by name."""
    few = few_kernel_cases()
    for name, dtype in (("torch-eager", "float16"), ("ort-gqa", "float32"), ("torch-sdpa-flash", "bfloat16")):
        found = cases_for(Target(builtin()[name], "cpu", dtype), None)
        assert {c.name for c in found if c.name in few} == {n for n, c in few.items() if dtype in c.dtypes}
    for name in ("jax-nn", "torch-flex", "torch-compile", "onnx-export23-static", "torch-sdpa-gradients"):
        assert not [c for c in cases_for(Target(builtin()[name], "cpu", "float32"), None) if c.name in few]


def test_the_few_meet_every_option_in_every_dtype() -> None:
    """The few cases have every option, width and group of a run, with under a quarter of the multiplications."""
    names = kernels.REQUESTED.read_text(encoding="utf-8").split()
    rows = [row for row in map(kernels.row_named, names) if row is not None]
    few = [row for row in map(kernels.row_named, few_kernel_cases()) if row is not None]
    cheap = [row for row in rows if row.cost <= 2 * kernels.CHEAP]
    for part in ("option", "width", "group"):
        assert {(getattr(r, part), r.dtype) for r in cheap} == {(getattr(r, part), r.dtype) for r in few}
    assert len(few) < 90
    assert sum(row.cost for row in few) < 0.25 * sum(row.cost for row in rows)


def test_messages_are_there_where_scripts_cannot_be_written(tmp_path: Path) -> None:
    """In a folder that cannot be written the message says that the script is missing, and why."""
    plug_in(tmp_path, RIGHT.replace("PEEK = 0", "PEEK = 1"))
    (tmp_path / "conformance-scripts").write_text("a file")
    done = run(tmp_path, "--impl", "mykernels.py:attention", "--case", "causal-square")
    assert done.returncode == 1
    assert "causal lets every row see one key ahead" in done.stdout
    assert "Script:   not written: " in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_an_interrupted_diagnosis_leaves_the_results(tmp_path: Path) -> None:
    """Ctrl-C during the diagnosis: the table is printed, and the file has the results."""
    plug_in(tmp_path, RIGHT.replace("PEEK = 0", "PEEK = 1"))
    (tmp_path / "interrupting.py").write_text(
        "from attention_conformance.conformance.diagnosis import explain\n\n"
        "def explain_(*_):\n    raise KeyboardInterrupt\n\nexplain.explain = explain_\n"
    )
    options = ("-p", "interrupting", "--impl", "mykernels.py:attention", "--case", "causal-square")
    done = run(tmp_path, *options, "--conformance-json", "out.jsonl")
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "worst share" in done.stdout
    assert [each.outcome for each in read(tmp_path / "out.jsonl").results] == [Outcome.FAILED]


def test_a_result_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """A result file that cannot be written is reported before anything is judged."""
    (tmp_path / "results").mkdir()
    done = run(tmp_path, "--impl", "numpy-eager", "--case", "plain", "--conformance-json", "results")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --conformance-json results: it is a folder" in done.stderr


def test_other_tests_may_have_arguments_of_these_names(tmp_path: Path) -> None:
    """A user's own failing test in the same run, with a case that is a dictionary, causes no internal error."""
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.parametrize('target', ['a'])\n"
        "@pytest.mark.parametrize('case', [{'n': 1}])\n"
        "def test_mine(target, case):\n    assert case['n'] == 2\n"
    )
    done = run(tmp_path, "test_mine.py", "--impl", "numpy-eager", "--dtype", "float32", "--case", "plain")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_a_part_without_implementations_is_refused(tmp_path: Path) -> None:
    """More parts than implementations give one sentence, not a run that judges nothing."""
    done = run(tmp_path, "--impl", "numpy-eager", "--case", "plain", "--shard", "2/2")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--shard 2/2: implementations are not split, so N can be at most 1 here" in done.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--parallel", "0"), ("--case-timeout", "0"), ("--case-timeout", "inf"), ("--shard", "3/2")]
)
def test_a_number_that_makes_no_sense_is_refused(option: str, value: str, tmp_path: Path) -> None:
    """The error comes from the command that was typed, and names the option."""
    command = [sys.executable, "-m", "attention_conformance", "check", "numpy-eager", option, value]
    done = commands.run(command, cwd=tmp_path)
    assert done.returncode == 2
    assert f"error: argument {option}: {value}: expected" in done.stderr
    assert "pytest" not in done.stderr
