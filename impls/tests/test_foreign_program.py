"""A program as an implementation: what its exit status, its files and its description mean."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from attention_conformance.impls import calls
from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.envelope import Sizes
from attention_conformance.impls.foreign.program import program
from attention_conformance.impls.process import limits
from attention_conformance.impls.process.pool import STDERR_LINES, Crashed, TimedOut, Worker
from attention_conformance.impls.process.worker import SCRATCH
from attention_conformance.impls.tests.foreign import ask, implementation, judge, keywords, qkv
from attention_conformance.impls.tests.test_pool import alive
from attention_conformance.impls.tests.within import assert_within

pytestmark = pytest.mark.slow(20)

pytest.importorskip("safetensors")

SOURCE = Path(__file__).parents[1] / "examples" / "attention.c"

#: A program in this Python: it describes itself by ``say``, and does what ``act`` does with the folder ``at``.
PYTHON = """#!{python}
import json, os, signal, sys
from pathlib import Path
if sys.argv[-1] == "--describe":
    {say}
    sys.exit()
at = Path(sys.argv[-1])
{act}
"""

#: Copies q to the output.
ECHO = """from safetensors.numpy import load_file, save_file
a = load_file(at / "input.safetensors")
save_file({"output": a["q"]}, at / "result.safetensors")"""


def script(folder: Path, act: str = "", say: str = "sys.exit(2)") -> str:
    """An executable file, as ``--impl`` names it."""
    file = folder / "tool"
    file.write_text(PYTHON.format(python=sys.executable, say=say, act=act), encoding="utf-8")
    file.chmod(0o755)
    return str(file)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the C example as ``attention``, and with a wrong scale as ``wrong``."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("c")
    text = SOURCE.read_text(encoding="utf-8")
    wrong = text.replace(": 1 / sqrt(D)", ": 1.0 / D")
    assert wrong != text
    for name, source in (("attention", text), ("wrong", wrong)):
        (folder / f"{name}.c").write_text(source, encoding="utf-8")
        command = ["cc", "-std=c99", "-Wall", "-Werror", "-O2", "-o", name, f"{name}.c", "-lm"]
        subprocess.run(command, cwd=folder, check=True)
    return folder


def test_the_c_example_passes(compiled: Path) -> None:
    """Sixty lines of C99 pass every case with is_causal and scale, the invalid ones included."""
    done = judge(compiled, "--impl", "./attention")
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1]) > 100


def test_a_wrong_scale_in_c_is_diagnosed(compiled: Path) -> None:
    """Scores divided by D instead of its root fail every case, and the diagnosis names the mistake."""
    done = judge(compiled, "--impl", "./wrong", "--case", "plain*", "--scripts", "scripts")
    assert done.returncode == 1
    assert "Script:   scripts/wrong-" in done.stdout
    assert "3 of 3 failures equal “the default scale applied twice: 1/D”" in done.stdout
    assert "Rerun:    attention-conformance check ./wrong --device cpu" in done.stdout


def test_the_script_of_a_program_fails_until_it_is_mended(compiled: Path, tmp_path: Path) -> None:
    """The script runs only the program, and exits with 1 as long as the program is wrong."""
    program = tmp_path / "kernel"
    shutil.copy(compiled / "wrong", program)
    options = ("--case", "scale-default", "--case", "causal-square", "--scripts", "scripts")
    assert judge(tmp_path, "--impl", "./kernel", *options).returncode == 1
    scripts = sorted((tmp_path / "scripts").iterdir())
    assert len(scripts) == 2
    for copied, code in (("wrong", 1), ("attention", 0)):
        shutil.copy(compiled / copied, program)
        for script in scripts:
            done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
            assert done.returncode == code, done.stdout + done.stderr
            assert ("WRONG" in done.stdout) is (code == 1)


def test_arrays_and_options_reach_a_program(compiled: Path) -> None:
    """The C program computes the same as the reference, with options."""
    q, k, v = qkv()
    reply = ask(f"{compiled}/attention", is_causal=True, scale=0.3)
    assert_within(reply.results, q, k, v, {"is_causal": True, "scale": 0.3})


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_dtype_crosses(dtype: str, tmp_path: Path) -> None:
    """Arrays that are written and read again are the same, bit for bit."""
    import ml_dtypes

    q, k, v = qkv(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    act = (
        'data = (at / "input.safetensors").read_bytes(); n = int.from_bytes(data[:8], "little")\n'
        'header = json.loads(data[8:8 + n]); header["output"] = header.pop("q")\n'
        'text = json.dumps(header).encode(); text += b" " * (-len(text) % 8)\n'
        '(at / "result.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n:])'
    )
    reply = ask(script(tmp_path, act), (q, k, v))
    assert calls.same_bits(reply.results["output"], q)


def test_options_are_texts_of_json(tmp_path: Path) -> None:
    """The metadata has the operator and the given options; None is not given."""
    act = (
        'data = (at / "input.safetensors").read_bytes(); n = int.from_bytes(data[:8], "little")\n'
        'print(json.dumps(json.loads(data[8:8 + n])["__metadata__"], sort_keys=True)); sys.exit(77)'
    )
    reply = ask(script(tmp_path, act), is_causal=True, scale=0.1, window=(3, None), softcap=None)
    expected = '{"is_causal": "true", "operator": "sdpa", "scale": "0.1", "window": "[3, null]"}'
    assert reply.text == f"NotImplementedError: {expected}"


def test_status_77_is_unsupported(tmp_path: Path) -> None:
    """The last line that the program prints is the reason."""
    reply = ask(script(tmp_path, 'print("first"); print("only on Tuesdays"); sys.exit(77)'))
    assert (reply.status, reply.text) == ("unsupported", "NotImplementedError: only on Tuesdays")


def test_another_status_is_an_error_with_the_last_lines(tmp_path: Path) -> None:
    """The last line printed is the message, and the lines before it follow below."""
    reply = ask(script(tmp_path, 'print("before", file=sys.stderr, flush=True); sys.exit("no kernel")'))
    assert reply.status == "raised"
    assert reply.text == "RuntimeError: tool ended with exit status 1: no kernel"
    assert reply.trace == "before"


@pytest.mark.parametrize(
    ("act", "text"),
    [
        ("os.abort()", "tool: the process was killed by SIGABRT"),
        ("os._exit(128 + signal.SIGSEGV)", "tool: the process was killed by SIGSEGV"),
        ("pass", "tool ended with status 0: it wrote no result.safetensors"),
        ('(at / "result.safetensors").write_bytes(b"x" * 99)', "result.safetensors is not safetensors"),
        (ECHO.replace('"output"', '"out"'), "result.safetensors holds out, and no output"),
    ],
)
def test_a_program_that_breaks_down_has_crashed(act: str, text: str, tmp_path: Path) -> None:
    """A program that crashes, also behind a shell, or that exits with 0 and no result has not refused its input."""
    worker = Worker()
    request = calls.Request.qkv("cpu", *qkv())
    with pytest.raises(Crashed, match=text):
        worker.call(
            "attention_conformance.impls.calls:call", implementation(script(tmp_path, act)), request, timeout=60
        )
    assert worker.started == 1
    worker.close()


def test_a_program_that_prints_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that prints endlessly is ended with the program that it started; the last lines are reported."""
    monkeypatch.setattr(limits, "PRINTED", 1 << 20)
    act = "import subprocess; subprocess.run(['yes', f'for ever {os.getpid()}'])"
    with pytest.raises(Crashed, match=r"tool was stopped: it printed more than 1 MiB") as caught:
        ask(script(tmp_path, act))
    assert len(caught.value.stderr.splitlines()) == STDERR_LINES
    words = caught.value.stderr.splitlines()[1]
    for _ in range(100):
        if not any(words in " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])):
            return
        time.sleep(0.05)
    pytest.fail("what it started still prints")


def test_an_invalid_input_is_not_refused_by_breaking_down(tmp_path: Path) -> None:
    """A program that does nothing, or is killed, passes no invalid case; one that exits with 1 refuses."""
    for act, passed in (("pass", False), ("os.abort()", False), ("sys.exit(1)", True)):
        script(tmp_path, act)
        done = judge(tmp_path, "--impl", "./tool", "--case", "invalid-lengths")
        assert (done.returncode == 0) is passed, done.stdout


def test_a_hang_ends_the_program_and_what_it_started(tmp_path: Path) -> None:
    """After a case's time limit no process of the program runs, and its folder is gone."""
    act = (
        "import subprocess, time\n"
        f"child = subprocess.Popen(['sleep', '1000']); Path({str(tmp_path / 'pids')!r}).write_text("
        "f'{os.getpid()} {child.pid} {at}')\ntime.sleep(1000)"
    )
    worker = Worker()
    some, request = implementation(script(tmp_path, act)), calls.Request.qkv("cpu", *qkv())
    with pytest.raises(TimedOut):
        worker.call("attention_conformance.impls.calls:call", some, request, timeout=5)
    one, two, folder = (tmp_path / "pids").read_text().split()
    wait_for_end(int(one), int(two))
    assert not Path(folder).exists()


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked up in /proc")
def test_a_program_ends_with_the_run(tmp_path: Path) -> None:
    """If the worker's parent is killed, neither the program nor its folder stays."""
    act = f"import time\nPath({str(tmp_path / 'pids')!r}).write_text(f'{{os.getpid()}} {{at}}')\ntime.sleep(1000)"
    start = (
        "from attention_conformance.impls.process.pool import Worker;"
        "from attention_conformance.impls import calls; from attention_conformance.impls.tests.foreign import *;"
        f"some = implementation({script(tmp_path, act)!r});"
        "Worker().call('attention_conformance.impls.calls:call', some, calls.Request.qkv('cpu', *qkv()))"
    )
    with subprocess.Popen([sys.executable, "-c", start]) as parent:
        while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
            assert parent.poll() is None
            time.sleep(0.05)
        parent.kill()
    pid, folder = (tmp_path / "pids").read_text().split()
    wait_for_end(int(pid))
    assert not Path(folder).exists()


def wait_for_end(*pids: int) -> None:
    """Wait until the processes are gone."""
    for _ in range(200):
        if not any(alive(pid) for pid in pids):
            return
        time.sleep(0.1)
    pytest.fail("a program outlived its case")


def test_folders_are_the_workers_own() -> None:
    """A worker gives its programs a folder, which is removed with the worker."""
    worker = Worker()
    folder = worker.call("os:getenv", SCRATCH)
    assert os.path.isdir(folder)
    worker.close()
    assert not os.path.exists(folder)


@pytest.mark.parametrize("say", ["sys.exit(2)", 'print("usage")', "print([1])", "os.abort()"])
def test_without_a_description_it_is_plain_attention(say: str, tmp_path: Path) -> None:
    """Another exit status, or output that is no JSON, means sdpa in float32 without keywords."""
    text = script(tmp_path, say=say)
    assert keywords(text) == set()
    assert (implementation(text).operator, implementation(text).dtypes) == ("sdpa", ("float32",))


def test_a_description_says_what_a_program_has(tmp_path: Path) -> None:
    """A description has the operator, keywords, dtypes, profiles and layout."""
    said = '{"operator": "mha", "keywords": ["mask"], "dtypes": ["float16"], "profiles": {"float16": "fused"}}'
    text = script(tmp_path, say=f"print({said!r})")
    found = implementation(text)
    assert (found.operator, found.dtypes, found.profile("float16").value) == ("mha", ("float16",), "fused")
    assert keywords(text) == {"mask"}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('{"keyword": []}', "'keyword' is not known; did you mean keywords"),
        ('{"keywords": ["casual"]}', "'casual' is not a keyword of sdpa; did you mean is_causal"),
        ('{"keywords": "mask"}', "keywords is 'mask', expected a list of texts"),
        ('{"operator": "sdpb"}', "'sdpb' is not an operator; did you mean sdpa"),
        ('{"dtypes": ["float31"]}', "'float31' is not one of float64"),
        ('{"layout": "SBHD"}', "its attributes are not understood"),
        ('{"operator": "sdpa", "operator": "mha"}', "tool --describe has the key 'operator' twice in one object"),
        ('{"profiles": NaN}', "tool --describe has the number NaN, which is not finite"),
    ],
)
def test_a_description_that_means_nothing_is_refused(said: str, message: str, tmp_path: Path) -> None:
    """A meaningless description is refused in one sentence, with the nearest known word."""
    text = script(tmp_path, say=f"print({said!r})")
    with pytest.raises(ImplementationError, match=message):
        implementation(text)


def test_a_file_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    """A file that is executable but no program is refused."""
    (tmp_path / "tool").write_bytes(b"\x00\x01")
    (tmp_path / "tool").chmod(0o755)
    with pytest.raises(ImplementationError, match="tool cannot be run: Exec format error"):
        program(str(tmp_path / "tool"))


def test_a_program_declares_its_envelope(tmp_path: Path) -> None:
    """A program declares its envelope in JSON, by the names of a function's attributes."""
    said = {"head_widths": [64, 128], "lengths": "multiple of 64", "not_together": [["mask", "bias"]]}
    text = script(tmp_path, say=f"print({json.dumps(json.dumps({'keywords': ['mask', 'bias']} | said))})")
    found = implementation(text).envelope
    assert (found.head_widths, found.key_lengths) == (Sizes((64, 128)), Sizes(multiple=64, least=64))
    assert found.not_together == (frozenset({"mask", "bias"}),)
    assert found.source == "declared"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"head_widths": "wide"}, "'wide' is not a size: expected an int"),
        ({"length_relation": "Sq ~ Sk"}, "length_relation 'Sq ~ Sk' is none of"),
        ({"not_together": [["mask", "softcup"]]}, r"not_together names \['softcup'\]"),
        ({"not_together": 3}, "--describe: "),
        ({"head_width": 64}, "'head_width' is not known; did you mean head_widths"),
    ],
)
def test_an_envelope_of_a_program_that_is_not_understood_is_refused(tmp_path: Path, said: object, told: str) -> None:
    """An envelope that is not understood is refused in one sentence that names the program."""
    text = script(tmp_path, say=f"print({json.dumps(json.dumps(said))})")
    with pytest.raises(ImplementationError, match=told) as caught:
        program(text)
    assert str(caught.value).startswith("tool --describe: ")
