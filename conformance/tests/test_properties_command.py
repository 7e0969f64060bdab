"""``pytest conformance --fuzz N`` as a user types it: options, seed, rerun of failures, the result file."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.properties.properties import PROPERTIES
from attention_conformance.conformance.properties.serving_properties import SERVING_PROPERTIES
from attention_conformance.conformance.results import read
from attention_conformance.conformance.tests.interrupts import interrupt, interruptible
from attention_conformance.conformance.tests.test_plugin import RIGHT, plug_in, run
from attention_conformance.impls.tests import commands
from attention_conformance.reports.input import read as reading

pytestmark = pytest.mark.slow(20)

#: Ignores the last key if the number of keys is odd, as a kernel that drops the tail of a tile.
TAIL = RIGHT.replace(
    "    top = np", "    s = np.where((np.arange(keys) < keys - keys % 2) | (keys == 1), s, -np.inf)\n    top = np"
)
MINE = ("--impl", "mykernels.py:attention")
FUZZ_ONLY = ("-k", "test_fuzz")
#: Prints at the end of the run whether hypothesis was imported.
LOOK = "import sys\ndef pytest_sessionfinish():\n    print('hypothesis imported:', 'hypothesis' in sys.modules)\n"


def without_hypothesis(folder: Path) -> tuple[str, str]:
    """Options that make hypothesis look like a package that is not installed."""
    (folder / "hide.py").write_text(
        "import importlib.util\nfound = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'hypothesis' else found(name, *rest)\n"
    )
    return "-p", "hide"


def test_a_right_function_has_every_property(tmp_path: Path) -> None:
    """A right function passes, properties that it cannot have are unsupported, and results go with those of cases."""
    options = (*MINE, "--fuzz", "5", "--case", "plain", "--conformance-json", "out.jsonl")
    done = run(plug_in(tmp_path), *options)
    assert done.returncode == 0, done.stdout
    file = read(tmp_path / "out.jsonl")
    assert file.complete
    outcomes = {result.case: result.outcome for result in file.results}
    assert outcomes["plain"] is outcomes["fuzz/agrees-with-reference"] is Outcome.PASSED
    assert outcomes["fuzz/keys-split"] is Outcome.UNSUPPORTED
    assert outcomes["fuzz/blocks-as-dense-mask"] is outcomes["fuzz/trees-path-alone"] is Outcome.UNSUPPORTED
    asked = [*PROPERTIES, *(name for name, prop in SERVING_PROPERTIES.items() if prop.operator == "sdpa")]
    assert {name for name in outcomes if name.startswith("fuzz/")} == {f"fuzz/{name}" for name in asked}
    assert len(reading.read([tmp_path / "out.jsonl"]).results) == len(file.results)


def test_a_failure_can_be_run_again_as_it_says(tmp_path: Path) -> None:
    """The printed command finds the same counterexample; it has the seed, as does the end of the run."""
    first = run(plug_in(tmp_path, TAIL), *MINE, "--fuzz", "60", *FUZZ_ONLY, "-k", "agrees-with-reference")
    assert first.returncode == 1, first.stdout
    (rerun,) = re.findall(r"^Rerun: +attention-conformance check (.*)$", first.stdout, re.MULTILINE)
    (seed,) = re.findall(r"^fuzz seed (\d+): --fuzz 60 --fuzz-seed \d+ repeats it$", first.stdout, re.MULTILINE)
    assert rerun.endswith(f"--fuzz 60 --fuzz-seed {seed}")
    again = commands.run([sys.executable, "-m", "attention_conformance", "check", *shlex.split(rerun)], cwd=tmp_path)
    problem = re.compile(r"^(?:Problem|Worst|Wrong|yield case).*$", re.MULTILINE)
    assert problem.findall(again.stdout) == problem.findall(first.stdout) != []


def test_the_seed_stands_in_the_header(tmp_path: Path) -> None:
    """The seed is printed before anything is drawn, so that a killed run can be repeated."""
    done = run(plug_in(tmp_path), *MINE, "--fuzz", "1", "--fuzz-seed", "42", *FUZZ_ONLY, "-v")
    assert "fuzz seed 42: --fuzz 1 --fuzz-seed 42 repeats it\n" in done.stdout.partition("collected")[0]
    assert done.returncode == 0, done.stdout


def test_the_pasted_line_stands_at_the_end_of_a_failure(tmp_path: Path) -> None:
    """A failure ends with a line that makes its problem a case."""
    done = run(plug_in(tmp_path, TAIL), *MINE, "--fuzz", "60", "-k", "agrees-with-reference")
    assert re.search(
        r"^yield case\('fuzz-[0-9a-f]{8}', 'SDPA-25', .*, dtypes=\('float32',\)\)$", done.stdout, re.MULTILINE
    )


def test_without_the_option_nothing_is_fuzzed_or_imported(tmp_path: Path) -> None:
    """No property test is collected or skipped, and hypothesis is not needed."""
    (tmp_path / "look.py").write_text(LOOK)
    done = run(plug_in(tmp_path), *MINE, "--case", "plain", "-p", "look", *without_hypothesis(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "hypothesis imported: False" in done.stdout
    assert "1 passed" in done.stdout
    assert "fuzz" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--fuzz", "0"), "--fuzz 0: expected a number of examples, 1 or more"),
        (("--fuzz-seed", "3"), "--fuzz-seed needs --fuzz N"),
        (("--fuzz", "many"), "argument --fuzz: invalid int value: 'many'"),
    ],
)
def test_bad_options_give_one_sentence(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    """Options that cannot be followed are refused with what was expected."""
    done = run(plug_in(tmp_path), *MINE, *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert sentence in done.stderr


def test_other_operators_have_no_properties(tmp_path: Path) -> None:
    """A layer next to an sdpa is judged only on its cases, as the properties are those of sdpa."""
    chosen = ("--impl", "numpy-layer", "--impl", "numpy-eager", "--dtype", "float32", "--case", "*plain")
    done = run(tmp_path, *chosen, "--fuzz", "2", "--conformance-json", "o.jsonl")
    assert done.returncode == 0, done.stdout
    random = {r.implementation for r in read(tmp_path / "o.jsonl").results if r.case.startswith("fuzz/")}
    assert random == {"numpy-eager"}
    assert "mha has no properties: --fuzz tried nothing of numpy-layer\n" in done.stdout


def test_without_hypothesis_the_option_says_what_to_install(tmp_path: Path) -> None:
    """Without hypothesis one sentence is printed, before anything runs."""
    done = run(plug_in(tmp_path), *MINE, "--fuzz", "5", *without_hypothesis(tmp_path))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--fuzz needs the package hypothesis: pip install 'attention-conformance[fuzz]'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_file_by_name_needs_the_option(tmp_path: Path) -> None:
    """Running the file of property tests without a number says what is missing."""
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parents[1] / "test_properties.py"), *MINE]
    done = subprocess.run(command, cwd=plug_in(tmp_path), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "test_properties.py needs --fuzz N, the number of examples" in done.stdout


def test_an_interrupted_run_ends(tmp_path: Path) -> None:
    """Ctrl-C does not wait for the remaining examples."""
    command = [sys.executable, "-m", "pytest", "conformance", "-q", *MINE, "--fuzz", "1000000", *FUZZ_ONLY]
    options = ["--conformance-json", "o.jsonl"]
    said = (tmp_path / "stderr.txt").open("w+")
    with (
        said,
        interruptible([*command, *options], plug_in(tmp_path), stdout=subprocess.DEVNULL, stderr=said) as process,
    ):
        while not (tmp_path / "o.jsonl").exists():  # written when the tests begin
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(1)
        status = interrupt(process)
        said.seek(0)
        # pytest itself fails where Python has no line number for the interrupted place (_code/code.py, lineno)
        breaks = ("\nKeyboardInterrupt\n", "unsupported operand type(s) for -: 'NoneType' and 'int'")
        assert status == pytest.ExitCode.INTERRUPTED or all(map(said.read().__contains__, breaks)), said.read()


def test_a_property_of_nothing_supported_is_no_pass(tmp_path: Path) -> None:
    """If everything is refused nothing was executed, and the run fails."""
    text = "def attention(q, k, v):\n    raise NotImplementedError('later')\n"
    done = run(plug_in(tmp_path, text), *MINE, "--fuzz", "3", "--dtype", "float32", *FUZZ_ONLY)
    assert done.returncode == 1
    assert "nothing was executed" in done.stdout
