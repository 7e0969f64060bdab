"""Lines of a script: on one line where they fit, and broken where a formatter would break them."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.impls.script import WIDTH, applied, assign_each


def ran(line: str, **names: Any) -> dict[str, Any]:
    """The names that are defined after a line of a script was run."""
    exec(line, names)  # noqa: S102  (the text under test)
    return names


def test_one_array_gets_a_plain_assignment() -> None:
    """Only several arrays need a generator."""
    assert assign_each(["mask"], "torch.from_numpy(a).to(a.device)") == "mask = torch.from_numpy(mask).to(mask.device)"


def test_several_arrays_share_an_expression() -> None:
    """Several arrays are assigned on one line."""
    assert assign_each(["q", "k"], "jnp.asarray(a)") == "q, k = (jnp.asarray(a) for a in (q, k))"


@pytest.mark.parametrize("length", [10, 60, 90, 110])
def test_a_long_statement_is_broken_where_it_may(length: int) -> None:
    """A broken statement stays within the width and does the same, whatever its length."""
    expression = " + ".join(["a"] * (length // 4))
    line = assign_each(["q", "k"], expression)
    names = ran(line, q=1, k=2)
    assert names["k"] == 2 * names["q"] == 2 * (length // 4)
    assert max(map(len, line.splitlines())) <= WIDTH


def test_a_long_call_gets_a_line_per_argument() -> None:
    """No line is wider than a screen."""
    text = applied("attention", [f"keyword_{i}={i}" for i in range(20)], depth=1, before="return ")
    assert text.splitlines()[0] == "    return attention("
    assert text.splitlines()[1] == "        keyword_0=0,"
    assert text.splitlines()[-1] == "    )"


def test_a_call_whose_arguments_fit_on_a_line_gets_one_for_them() -> None:
    """Arguments that fit share one line, as a formatter leaves them; with one more, each gets its own line."""
    arguments = [f"keyword_{i}={i}" for i in range(8)]
    lines = applied("attention_of_a_long_name", arguments, depth=1, before="return ").splitlines()
    assert lines == ["    return attention_of_a_long_name(", f"        {', '.join(arguments)}", "    )"]
    assert len(applied("attention", [*arguments, "mask=mask" * 3], depth=1).splitlines()) == len(arguments) + 3


def test_a_dictionary_that_is_too_long_is_broken() -> None:
    """Each entry gets a line, at its depth."""
    entries = [f'"array_{i}": array_{i}' for i in range(9)]
    lines = applied("run", ["None", f"{{{', '.join(entries)}}}"], depth=1).splitlines()
    assert lines[:4] == ["    run(", "        None,", "        {", '            "array_0": array_0,']
    assert lines[-2:] == ["        },", "    )"]
    assert max(map(len, lines)) <= WIDTH
