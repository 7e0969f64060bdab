"""Kernel paths: the data file is complete, every path can be taken, and broken files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.conformance.cases.kernel_paths import (
    Call,
    KernelPath,
    PathError,
    condition,
    kernel_paths,
    load,
)

#: A path that is right, line by line.
RIGHT = {
    "id": '"a-path"',
    "kernel": '"a kernel"',
    "what": '"what it does"',
    "repository": '"owner/name"',
    "commit": f'"{"0" * 40}"',
    "file": '"folder/file.h"',
    "when": '["sq <= 64"]',
    "edges": "{ sq = [64, 65] }",
}


def written(folder: Path, *paths: dict[str, str]) -> Path:
    """A data file of these paths."""
    file = folder / "paths.toml"
    text = "".join("[[path]]\n" + "".join(f"{name} = {value}\n" for name, value in path.items()) for path in paths)
    file.write_text(text, encoding="utf-8")
    return file


def call(dtype: str = "float16", **other: object) -> Call:
    """A call of two batches, eight heads in groups of four, one query, 600 keys and width 64."""
    sizes = {"b": 2, "hq": 8, "hkv": 2, "sq": 1, "sk": 600, "d": 64, "dv": 64}
    changed = {name: int(value) for name, value in other.items() if name in sizes}  # type: ignore[call-overload]
    keywords = {name: value for name, value in other.items() if name not in sizes}
    return Call.of(**sizes | changed, dtype=dtype, keywords=keywords)


def test_the_data_file_has_enough() -> None:
    """The data file has at least forty paths, from at least ten repositories."""
    assert len(kernel_paths()) >= 40
    assert len({path.repository for path in kernel_paths().values()}) >= 10


@pytest.mark.parametrize("path", kernel_paths().values(), ids=lambda path: path.id)
def test_a_path_has_a_source_and_sizes(path: KernelPath) -> None:
    """A path names a file at a commit, and sizes at its edges."""
    assert path.link.startswith(f"https://github.com/{path.repository}/blob/{path.commit}/")
    assert path.edges
    assert path.what
    assert not path.what.endswith(".")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("sq == 1", True),
        ("sq != 1", False),
        ("sk > 512", True),
        ("sk <= 512", False),
        ("group >= 4", True),
        ("bh < 16", False),
        ("packed == 4", True),
        ("sk % 128 == 88", True),
        ("sk % 8 != 0", False),
        ("d in 64 128", True),
        ("d not in 64 128", False),
        ("dtype in float16 bfloat16", True),
        ("dtype in float32", False),
        ("sq < sk", True),
        ("d == dv", True),
        ("with window", True),
        ("without window", False),
        ("with causal", False),
        ("without lse", True),
    ],
)
def test_a_condition(text: str, holds: bool) -> None:
    """Each form of condition holds on a call that meets it and on no other."""
    assert condition(text).holds(call(window=(3, 0), is_causal=False, return_lse=None)) is holds


def test_keywords_are_options() -> None:
    """Names of the contract are translated into the options of conditions."""
    given = call(is_causal=True, causal_offset=0, kv_lengths=(1,), past_key=1, past_value=1, return_lse=True)
    assert given.options == {"causal", "offset", "lengths", "past", "lse"}


def test_a_path_is_taken_where_all_of_its_conditions_hold() -> None:
    """A path for one query over more than 512 keys and few heads is taken only where all of that holds."""
    path = kernel_paths()["vllm-partitions"]
    assert path.taken(call())
    assert not path.taken(call(sq=2))
    assert not path.taken(call(sk=512))
    assert not path.taken(call(b=128))


@pytest.mark.parametrize(
    "text", ["sq", "sq = 1", "width > 3", "sq % 0 == 0", "dtype in int8", "with dropout", "sq > -1"]
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    """A misspelt condition, which would otherwise never hold, is refused."""
    with pytest.raises(PathError, match="no condition"):
        condition(text)


def test_a_right_file_is_read(tmp_path: Path) -> None:
    """The file that the refusals below vary is read."""
    assert load(written(tmp_path, RIGHT))["a-path"].taken(call())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"id": '"A Path"'}, "Expected `str` matching"),
        ({"commit": '"main"'}, "Expected `str` matching"),
        ({"when": "[]"}, "length >= 1"),
        ({"when": '["sq is 1"]'}, "a-path: 'sq is 1' is no condition"),
        ({"edges": "{ sq = [1, 64] }"}, "edges of sq lie on one side of 'sq <= 64'"),
        ({"edges": "{ sk = [1, 64] }"}, "edges of sq lie on one side"),
        ({"edges": "{ sq = [64, 65], s = [1] }"}, "no size is named s"),
        ({"edges": "{ sq = [0, 65] }"}, "Expected `int` >= 1"),
        ({"rows": "32", "edges": "{ sq = [64, 96] }"}, "multiples of its tile of 32 only"),
        ({"tile": "32"}, "unknown field `tile`"),
        ({"id": "[["}, "Invalid"),
    ],
)
def test_a_broken_path_is_refused(tmp_path: Path, changed: dict[str, str], why: str) -> None:
    """Each way in which a record can be wrong is reported."""
    with pytest.raises(PathError, match=why):
        load(written(tmp_path, RIGHT | changed))


def test_an_id_stands_once(tmp_path: Path) -> None:
    """A second path with the same id, which would replace the first, is refused."""
    with pytest.raises(PathError, match="a-path: stands twice"):
        load(written(tmp_path, RIGHT, RIGHT))


def test_a_field_is_not_left_out(tmp_path: Path) -> None:
    """A path without a source is refused."""
    with pytest.raises(PathError, match="missing required field `file`"):
        load(written(tmp_path, {name: value for name, value in RIGHT.items() if name != "file"}))
