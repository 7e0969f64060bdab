"""For tests of test vectors: results computed from the vectors, and folders that were changed by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.results import read as read_results
from attention_conformance.conformance.vectors.check import Origin, check, recorded
from attention_conformance.conformance.vectors.commands import export
from attention_conformance.conformance.vectors.files import VectorError, decode, encode, text_of
from attention_conformance.conformance.vectors.index import NAME, Chosen, read_index, read_vector
from attention_conformance.impls.calls import Request, call
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.loading import keywords
from attention_conformance.impls.select import select
from attention_conformance.impls.tests import fakes

#: One implementation of each operator that passes every case.
_NAMES = "eager layer sublayer gradients layer-gradients varlen varlen-gradients paged merge merge-gradients latent"
RIGHT = {i.operator: i for i in select([f"numpy-{name}" for name in _NAMES.split()])}


def fake(name: str) -> dict[str, Implementation]:
    """A fake attention, right or wrong in one way, as the implementation of sdpa."""
    return {"sdpa": Implementation(name, f"attention_conformance.impls.tests.fakes:{name}")}


def compute(vectors: Path, results: Path, by_operator: Mapping[str, Implementation] = RIGHT) -> Path:
    """Write the results of implementations for every vector, "unsupported" for what they lack.  The results folder."""
    for entry in read_index(vectors).vectors:
        case, implementation = recorded(read_vector(vectors, entry)), by_operator[entry.operator]
        inputs = case.inputs(entry.dtype)
        file = results / entry.tensors.file
        file.parent.mkdir(parents=True, exist_ok=True)
        if implementation.target.startswith("attention_conformance.impls.tests.fakes:"):
            lacking = case.keywords - keywords(getattr(fakes, implementation.name))
            if lacking:
                write_words(file, "unsupported", f"no keyword {', '.join(sorted(lacking))}")
                continue
        request = Request("cpu", inputs.arrays, inputs.keywords, memory=case.memory, repeats=case.repeats)
        reply = call(implementation, request)
        if reply.status == "returned":
            arrays = dict(reply.results)
            for other in range(2, case.repeats + 1):
                arrays |= {f"{name}.{other}": array for name, array in reply.results.items()}
            file.write_bytes(encode(arrays))
        else:
            write_words(file, "error" if reply.status == "raised" else "unsupported", reply.text)
    return results


def write_words(file: Path, outcome: str, reason: str) -> None:
    """Write words instead of the arrays of a result."""
    file.unlink(missing_ok=True)
    file.with_suffix(".json").write_bytes(text_of({"outcome": outcome, "reason": reason}))


def change(file: Path, edit: Callable[[dict[str, np.ndarray]], Any]) -> None:
    """Change the arrays of a file; ``edit`` changes the dictionary that it is given."""
    arrays = {name: array.copy() for name, array in decode(file.read_bytes(), file.name).items()}
    edit(arrays)
    file.write_bytes(encode(arrays))


def change_json(file: Path, edit: Callable[[Any], Any]) -> None:
    """Change a JSON document; ``edit`` changes the value that it is given."""
    document = json.loads(file.read_text(encoding="utf-8"))
    edit(document)
    file.write_text(json.dumps(document), encoding="utf-8")


def hash_again(folder: Path) -> None:
    """Give the index the current hashes of the files, as someone who changes vectors on purpose would."""

    def edit(index: Any) -> None:
        for entry in index["vectors"]:
            for kind in ("about", "tensors"):
                entry[kind]["sha256"] = hashlib.sha256((folder / entry[kind]["file"]).read_bytes()).hexdigest()

    change_json(folder / NAME, edit)


def two(folder: Path) -> Path:
    """Vectors of two cases in float32, ``plain`` and ``lse``, with right results.  The folder of both."""
    export(folder / "vectors", Chosen(cases=["plain", "lse"], dtypes=["float32"]))
    compute(folder / "vectors", folder / "results")
    return folder


def refused(vectors: Path, error: type[VectorError], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that the check raises this error and that the command ends with 2 and a sentence, without a traceback."""
    results = vectors.with_name("results")
    with pytest.raises(error, match=said) as caught:
        check(vectors, results, Chosen(), Origin("mine"), None)
    assert type(caught.value) is error
    path = vectors.with_name("mine.jsonl")
    assert main(["check-vectors", str(vectors), str(results), "--conformance-json", str(path)]) == 2
    assert capsys.readouterr().err == f"error: {caught.value}\n"
    assert "\n" not in str(caught.value)
    assert not path.exists() or not read_results(path).complete
