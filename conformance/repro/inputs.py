"""Inputs of a script: few numbers are written out; others come from the recipe and its seed, or as bytes.

A maker of data is a closure; the recipe recovers the expression that made it: ``peak(-1)``, ``random_mask(0.5)``.
"""

from __future__ import annotations

import base64
import inspect
import itertools
import json
import math
import re
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases import AnyCase, Shape, data, layer
from attention_conformance.conformance.cases.latent import LatentShape
from attention_conformance.conformance.cases.layer import LayerShape
from attention_conformance.conformance.cases.packed import PackedShape, PagedShape, across, over_pages
from attention_conformance.conformance.repro.inline import CannotInline, Import, Inliner, import_lines, lambda_at
from attention_conformance.impls.script import CARRIED, INDENT, WIDTH, applied, enclosed

#: Most numbers for which inputs may be written out, and most lines for which they are, if there is a recipe: a recipe
#: takes 10 to 30 lines, and says what the numbers are.  Written numbers do without NumPy's random generator, whose
#: stream may change between versions.
LITERAL_NUMBERS = 1500
LITERAL_LINES = 40

#: Most lines, beyond one per array, for which they always are: two rows of four numbers in float64 each.
LITERAL_ALWAYS = 12

#: Most lines of a short form, and most numbers of a draw that are replaced one by one.
SHORT, REPLACED = 16, 4

#: About as many of an array's numbers are compared with a draw before all are.
SAMPLE = 1000

#: Most lines of one array in a brief form.
BRIEF = 3

#: The seed of the numbers that the steps of one sequence are cut from (cases/decode.py).
SEQUENCE = 7

#: Beginning of an edit that is a lambda; its body becomes a statement's right side.
_LAMBDA = "(lambda x: "

_NUMPY: Import = ("numpy", "", "np")


class NoRecipe(Exception):
    """A value that cannot be written down as an expression; the text says why."""


def expression(value: Any, sources: list[str]) -> str:
    """The expression for a plain value or a function; the functions that it names are added to ``sources``.

    A function of a module is named, and a lambda that needs nothing else is written out.  A function that was made by
    another one is written as the call of that one, with the arguments that the closure holds.  The caller must try
    whether the result is the same.  Raises NoRecipe or CannotInline for anything else.
    """
    if callable(value):
        return _function(value, sources)
    if isinstance(value, float) and not math.isfinite(value):
        return "np.nan" if math.isnan(value) else f"{'-' if value < 0 else ''}np.inf"
    if isinstance(value, tuple):
        items = [expression(each, sources) for each in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, slice):
        return f"slice({value.start!r}, {value.stop!r})" if value.step is None else repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    raise NoRecipe(f"a {type(value).__name__}")


def _function(value: Any, sources: list[str]) -> str:
    qualified, module = getattr(value, "__qualname__", ""), getattr(value, "__module__", "")
    names = qualified.split(".<locals>.")
    if names[-1] == "<lambda>" and not value.__code__.co_freevars:
        arguments, body, used = lambda_at(module, value.__code__.co_firstlineno)
        sources += [f"{module}:{name}" for name in used]
        return f"(lambda {arguments}: {body})"
    made_by = getattr(sys.modules.get(module), names[0], None)
    if len(names) > 2 or not inspect.isfunction(made_by) or inspect.isgeneratorfunction(made_by):
        raise NoRecipe(f"{module}.{qualified} is not made by a function of its module")
    sources.append(f"{module}:{names[0]}")
    return names[0] if len(names) == 1 else _call(made_by, inspect.getclosurevars(value).nonlocals, sources)


def _call(made_by: Callable[..., Any], held: Any, sources: list[str]) -> str:
    """The call of a function with the arguments that its closure holds; defaults are left out."""
    arguments = []
    parameters = inspect.signature(made_by).parameters.values()
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            arguments += [expression(item, sources) for item in held.get(each.name, ())]
        elif each.name not in held:
            if each.default is each.empty:
                raise NoRecipe(f"{made_by.__name__}: the closure does not hold {each.name}")
        elif each.default is each.empty:
            arguments.append(expression(held[each.name], sources))
        elif held[each.name] != each.default:
            arguments.append(f"{each.name}={expression(held[each.name], sources)}")
    return f"{made_by.__name__}({', '.join(arguments)})"


@dataclass(frozen=True)
class Statements:
    """Statements that define the arguments and the array keywords in NumPy; dtypes of CARRIED become float32."""

    lines: tuple[str, ...]
    imports: frozenset[Import] = frozenset({_NUMPY})
    #: Functions (``module:function``) that the statements use.
    sources: tuple[str, ...] = ()


def arrays(case: AnyCase, dtype: str) -> dict[str, np.ndarray]:
    """The arrays of a case by name: the arguments, and the keywords that are given as arrays."""
    inputs = case.inputs(dtype)
    given = {name: value for name, value in inputs.keywords.items() if isinstance(value, np.ndarray)}
    return {**inputs.arrays, **given}


def simpler_forms(case: AnyCase) -> Mapping[str, str]:
    """The assignments of a case whose inputs were simplified, by name; none for other cases."""
    forms: Mapping[str, str] = getattr(case.edit, "written", {})
    return forms


def left_out(case: AnyCase) -> tuple[str, ...]:
    """The keywords of a case that its simpler form leaves out."""
    names: tuple[str, ...] = getattr(case.edit, "left_out", ())
    return names


def statements(case: AnyCase, dtype: str) -> Statements:
    """Statements of a script that make the inputs of a case."""
    wanted = arrays(case, dtype)
    forms = simpler_forms(case)
    if forms:
        lines = [forms.get(n) or brief(n, array) or _literal(n, array) for n, array in wanted.items()]
        simple = Statements(_grouped(lines))
        if _equal(_run(simple), wanted):
            return simple
    written = Statements(tuple(_literal(name, array) for name, array in wanted.items())) if _writable(wanted) else None
    if written is not None and not _equal(_run(written), wanted):
        written = None
    count = 0 if written is None else sum(line.count("\n") for line in written.lines)
    if written is not None and count <= LITERAL_ALWAYS:
        return written
    drawn = short(case, dtype)
    if drawn is None and written is not None and count <= LITERAL_LINES:
        return written
    return drawn or seeded(case, dtype) or written or packed(case, dtype)


def _grouped(lines: Sequence[str]) -> tuple[str, ...]:
    """Assignments, with those that share a right side joined in one statement at the first one's place."""
    names: dict[str, list[str]] = {}
    for line in lines:
        name, _, right = line.partition(" = ")
        names.setdefault(line if "\n" in line else right, []).append(name)
    found = []
    for right, some in names.items():
        line = f"{', '.join(some)} = ({right} for _ in range({len(some)}))"
        same = len(some) > 1 and len(line) <= WIDTH
        found += [line] if same else [right] if "\n" in right else [f"{name} = {right}" for name in some]
    return tuple(found)


def _writable(wanted: Mapping[str, np.ndarray]) -> bool:
    """Whether there are few numbers to write; an array of equal numbers counts as one."""
    return sum(1 if _uniform(array) else array.size for array in wanted.values()) <= LITERAL_NUMBERS


def _uniform(array: np.ndarray) -> bool:
    """Whether an array has several elements, all with the same bits."""
    bits = _bits(array).ravel()
    return bool(array.size > 1 and bits[1] == bits[0] and (bits == bits[0]).all())


def _bits(array: np.ndarray) -> np.ndarray:
    """An array's bits as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


# By numbers.


def _literal(name: str, array: np.ndarray) -> str:
    """The assignment of an array written out."""
    array = carried(array)
    kind = "bool" if array.dtype == bool else f"np.{array.dtype}"
    if array.size == 0:
        return f"{name} = np.zeros({array.shape}, {kind})"
    if _uniform(array):
        return f"{name} = np.full({array.shape}, {_number(array.flat[0])}, {kind})"
    text = _nested(array)
    line = f"{name} = np.array({text}, {kind})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name} = np.array(", *_filled(f"{text},"), f"{INDENT}{kind},", ")"])


def carried(array: np.ndarray) -> np.ndarray:
    """The array in a dtype of NumPy's own."""
    return array.astype(np.float32) if str(array.dtype) in CARRIED else array


def _nested(array: np.ndarray) -> str:
    if array.ndim == 0:
        return _number(array[()])
    return f"[{', '.join(_nested(each) for each in array)}]"


def _number(value: Any) -> str:
    """The shortest text that gives exactly this number in its dtype."""
    if isinstance(value, np.bool_):
        return str(int(value))
    text = str(value)
    if text in ("nan", "inf", "-inf"):
        return text.replace("nan", "np.nan").replace("inf", "np.inf")
    return text.removesuffix(".0") if text != "-0.0" else text


def _filled(text: str) -> list[str]:
    """A long list, wrapped to lines of full width."""
    lines, line = [], INDENT
    for word in text.split(" "):
        if len(line) + len(word) > WIDTH:
            lines.append(line.rstrip())
            line = INDENT
        line += f"{word} "
    return [*lines, line.rstrip()]


def brief(name: str, array: np.ndarray) -> str:
    """The assignment of an array in few lines without a draw; "" where it takes more."""
    if array.ndim == 0:
        return _literal(name, array)
    text = _summed(name, carried(array)) or _rows(name, carried(array))
    lines = text.split("\n")
    return text if len(lines) <= BRIEF and max(map(len, lines)) <= WIDTH else ""


# By draws, sums and rows.


def short(case: AnyCase, dtype: str) -> Statements | None:
    """The arrays in a line or two each, without a function: normal draws, sums of one row per axis, rows of 0 and 1.

    None where an array is none of these, or where there are more than SHORT lines in all.
    """
    return next(filter(None, (_short(case, dtype, seed) for seed in (zlib.crc32(case.name.encode()), SEQUENCE))), None)


def _short(case: AnyCase, dtype: str, seed: int) -> Statements | None:
    wanted = arrays(case, dtype)
    rng, lines, drawn = np.random.default_rng(seed), list[str](), False
    for name, array in wanted.items():
        plain = carried(array)
        text = (
            _plainly_drawn(name, plain, rng, wanted, dtype)
            or _summed(name, plain)
            or _rows(name, plain)
            or _draw_expression(name, plain, rng, wanted, dtype)
            or _poisoned(name, plain, rng, wanted, dtype)
        )
        if not text:
            return None
        lines.append(text)
        drawn |= "rng." in text
    lines = _merged(lines)
    if drawn:
        lines.insert(0, f"rng = np.random.default_rng({seed})")
        lines.append(f"if rng.random() != {rng.random()!r}:  # another NumPy draws other numbers\n{INDENT}sys.exit(2)")
    written = Statements(tuple(lines), frozenset({_NUMPY, ("sys", "", "")} if drawn else {_NUMPY}))
    every = "\n".join(lines).split("\n")
    fits = len(every) <= SHORT and max(map(len, every)) <= WIDTH
    return written if fits and _equal(_run(written), wanted) else None


def _poisoned(
    name: str, array: np.ndarray, rng: np.random.Generator, wanted: Mapping[str, np.ndarray], dtype: str
) -> str:
    """An array of four axes that has one number throughout some keys, and is a sum or a draw elsewhere."""
    if array.ndim != 4 or array.dtype == bool or 0 in array.shape:
        return ""
    rows = np.moveaxis(array, 2, 0).reshape(array.shape[2], -1)
    bits = _bits(rows)
    keys = [j for j, row in enumerate(bits) if rows.shape[1] > 1 and (row == row[0]).all()]
    values = {bits[j, 0] for j in keys}
    if len(values) != 1 or len(keys) == len(bits):
        return ""
    kept = [j for j in range(len(bits)) if j not in keys]
    value = rows[keys[0], 0]
    steps = np.diff(np.unique(array.take(kept, 2).astype(np.float64)[0, 0, :, 0]))
    plain = array.copy()
    for j in keys:  # the numbers there if the array were a sum of one for each index
        near = min(kept, key=lambda other, j=j: abs(other - j))  # type: ignore[misc]
        with np.errstate(all="ignore"):
            plain[:, :, j] = array[:, :, near] + (j - near) * (steps[0] if steps.size else 0)
    text = _summed(name, plain) or _draw_expression(name, array, rng, wanted, dtype, frozenset(keys))
    which = f"{keys[0]}" if len(keys) == 1 else f"{keys[0]}:" if keys == list(range(keys[0], len(bits))) else f"{keys}"
    return f"{text}\n{name}[:, :, {which}] = {_number(value)}" if text else ""


#: One array of normal numbers.
_DRAW = re.compile(r"(\w+) = rng\.standard_normal\((\([\d, ]*\))\)(\.astype\(np\.\w+\))")

#: An array that is drawn in one expression.
_DRAWN = re.compile(r"(\w+) = (\(.*rng\.standard_normal.*\.astype\(np\.\w+\))")


def _merged(lines: Sequence[str]) -> list[str]:
    """The statements, with consecutive draws joined: of normal numbers, and of one expression."""
    found: list[str] = []
    for cast, group in itertools.groupby(lines, lambda line: (m := _DRAW.fullmatch(line)) and m[3]):
        some = list(group)
        draws = [m for m in map(_DRAW.fullmatch, some) if m]
        names, shapes = ", ".join(m[1] for m in draws), ", ".join(m[2] for m in draws)
        line = f"{names} = (rng.standard_normal(shape){cast} for shape in ({shapes}))"
        found += [line] if len(draws) > 1 and len(line) <= WIDTH else some
    return [line for _, group in itertools.groupby(found, _right_side) for line in _repeated(list(group))]


def _right_side(line: str) -> str:
    """The expression of a draw, or the line itself."""
    drawn = _DRAWN.fullmatch(line)
    return drawn[2] if drawn else line


def _repeated(lines: list[str]) -> list[str]:
    """Draws of one expression as one statement; a generator expression evaluates them in the order of the names."""
    drawn = [m for m in map(_DRAWN.fullmatch, lines) if m]
    if len(drawn) < 2 or len(drawn) < len(lines):
        return lines
    line = f"{', '.join(m[1] for m in drawn)} = ({drawn[0][2]} for _ in range({len(drawn)}))"
    return [line] if len(line) <= WIDTH else lines


def _summed(name: str, array: np.ndarray) -> str:
    """An array of equal numbers, a short array, or one that is exactly a sum of one number for each index."""
    if array.size == 0 or _uniform(array):
        return _literal(name, array)
    if array.dtype != bool and array.ndim > 1 and np.isfinite(array).all():
        exact = array.astype(np.float64)
        first = exact[(0,) * array.ndim]
        rest: Any = (..., *(0,) * (array.ndim - 1))
        parts = [np.moveaxis(exact, axis, 0)[rest] - first for axis in range(array.ndim)]
        parts[-1] = parts[-1] + first
        if np.array_equal(sum(np.ix_(*parts)), exact):
            line = f"{name} = sum(np.ix_({', '.join(map(_row, parts))})).astype(np.{array.dtype})"
            return line if len(line) <= WIDTH else ""
    if len(name) + len(" = np.array(, )") + 2 * array.size > WIDTH:
        return ""  # too long even with a digit and a comma each
    line = _literal(name, array)
    return line if "\n" not in line else ""


def _row(numbers: np.ndarray) -> str:
    """Numbers as a list; shorter for a list that repeats or counts."""
    texts = [_number(each) for each in numbers]
    for period in range(1, len(texts) // 2 + 1):
        if texts == texts[:period] * (len(texts) // period):
            return f"[{', '.join(texts[:period])}] * {len(texts) // period}"
    if len(texts) > 2 and np.array_equal(np.diff(numbers), np.ones(len(texts) - 1)) and numbers[0] == int(numbers[0]):
        return f"range({int(numbers[0])}, {int(numbers[-1]) + 1})"
    falls = np.flatnonzero(np.diff(numbers) != 1)
    if falls.size and np.array_equal(numbers, (np.arange(len(texts)) + 1) % (falls[0] + 2) - 1):
        return f"(np.arange({len(texts)}) + 1) % {falls[0] + 2} - 1"
    return f"[{', '.join(texts)}]"


def _draw_expression(
    name: str,
    array: np.ndarray,
    rng: np.random.Generator,
    wanted: Mapping[str, np.ndarray],
    dtype: str,
    but: frozenset[int] = frozenset(),
) -> str:
    """Normal numbers with a spread, a few of them replaced; the generator advances only if this form fits.

    Numbers at the keys ``but`` are not compared.
    """
    before = rng.bit_generator.state
    own = np.dtype("float32" if dtype == "bfloat16" else dtype)
    rounded = dtype in CARRIED  # by the framework
    if name.removeprefix("grad_") in ("lse", "lses"):  # in float32 or wider
        own, rounded = array.dtype, False
    cast = f".astype(np.{own})" if array.dtype == own else f".astype(np.{own}).astype(np.{array.dtype})"
    for skipped in ("", "v"):  # makers draw v and replace it by other numbers
        skip = ""
        if skipped and skipped in wanted:
            rng.standard_normal(wanted[skipped].shape)
            skip = f"rng.standard_normal({wanted[skipped].shape})  # others\n"
        draw = rng.standard_normal(array.shape)
        for text, form in _made_of(array, draw) if array.dtype != bool and array.size else ():

            def different(numbers: np.ndarray, drawn: np.ndarray, form: _Form = form) -> np.ndarray:
                with np.errstate(all="ignore"):
                    made = form(drawn).astype(own).astype(array.dtype)
                    if rounded and array.dtype == own:
                        made = made.astype(dtype).astype(own)
                return _bits(numbers) != _bits(made)

            if not but and different(_sample(array), _sample(draw)).sum() > REPLACED:
                continue
            differ = np.argwhere(different(array, draw))
            differ = np.array([place for place in differ if not but or place[2] not in but])
            if len(differ) <= REPLACED:
                line = f"{skip}{name} = {text}{cast}"
                places = ([int(i) for i in place] for place in differ)
                return "\n".join([line, *(f"{name}{place} = {_number(array[tuple(place)])}" for place in places)])
        rng.bit_generator.state = before
    return ""


def _plainly_drawn(
    name: str, array: np.ndarray, rng: np.random.Generator, wanted: Mapping[str, np.ndarray], dtype: str
) -> str:
    """A draw in one line; short ones too, as later draws start from where the generator then is."""
    before = rng.bit_generator.state
    text = _draw_expression(name, array, rng, wanted, dtype) if array.size > REPLACED else ""
    if "\n" not in text:
        return text
    rng.bit_generator.state = before
    return ""


#: A form that makes an array's numbers of those that are drawn.
_Form = Callable[[np.ndarray], np.ndarray]


def _made_of(array: np.ndarray, draw: np.ndarray) -> Iterator[tuple[str, _Form]]:
    """Forms that an array may have from a draw, as text and function: itself, with a spread, a weight, an offset."""
    text, exact, some = f"rng.standard_normal({array.shape})", _sample(array).astype(np.float64), _sample(draw)
    spread = _factor(exact, some)
    yield (text, lambda d: d) if spread == 1 else (f"({spread!r} * {text})", lambda d: spread * d)
    if array.ndim > 1:  # a weight keeps the size of what it multiplies
        rows = array.shape[-2]
        weight = _factor(exact, some / np.sqrt(rows))
        text_of = f"{text} / np.sqrt({rows})"
        if weight == 1:
            yield f"({text_of})", lambda d: d / np.sqrt(rows)
        else:
            yield f"({weight!r} * ({text_of}))", lambda d: weight * (d / np.sqrt(rows))
    with np.errstate(all="ignore"):
        slope = _short_number(np.median(np.diff(exact) / np.diff(some)) if array.size > 1 else 1)
        offset = _short_number(np.median(exact - slope * some))
    if offset:
        scaled = text if slope == 1 else f"{slope!r} * {text}"
        yield f"({offset!r} + {scaled})", lambda d: offset + slope * d


def _sample(array: np.ndarray) -> np.ndarray:
    """Numbers from all over an array, in one axis: whether it was drawn shows in them as well as in all."""
    return array.ravel()[:: max(1, array.size // SAMPLE)]


def _factor(array: np.ndarray, draw: np.ndarray) -> float:
    """The ratio of most numbers to the draw, in few digits; 1 where there is none."""
    with np.errstate(all="ignore"):
        return _short_number(np.median(array / draw)) or 1.0


def _short_number(number: Any) -> float:
    """A number in three digits; 0 if it is not finite."""
    return float(f"{number:.3g}") if np.isfinite(number) else 0.0


def _rows(name: str, array: np.ndarray) -> str:
    """A mask, or a bias of two numbers, by its rows; written once along axes where it is constant."""
    if array.ndim == 0:
        return ""
    outer = "{}"
    if array.dtype != bool:
        two = np.unique(array)
        if len(two) != 2:
            return ""
        outer = f"np.where({{}}, {_number(two[1])}, {_number(two[0])}).astype(np.{array.dtype})"
        array = array == two[1]
    kept = tuple(slice(0, 1) if (array == array.take([0], axis)).all() else slice(None) for axis in range(array.ndim))
    once = array[kept]
    rows = ["".join(str(int(each)) for each in row) for row in once.reshape(-1, once.shape[-1])]
    full = f"np.broadcast_to({{}}, {array.shape}).copy()" if once.shape != array.shape else "{}"
    made = outer.format(full.format(f'np.array([[c == "1" for c in row] for row in rows]).reshape({once.shape})'))
    words = textwrap.wrap(" ".join(rows), WIDTH - len(INDENT) - 3, break_long_words=False)
    if len(words) == 1:
        return f'rows = "{words[0]}".split()\n{name} = {made}'
    lines = "\n".join(f'{INDENT}"{words} "' for words in words)
    return f"rows = (\n{lines}\n)\n{name} = {made.replace('in rows', 'in rows.split()')}"


# By seed.


def seeded(case: AnyCase, dtype: str) -> Statements | None:
    """The recipe of ``conformance.cases.base`` for this case; None if it cannot be written or makes other arrays."""
    wanted = arrays(case, dtype)
    try:
        recipe = _recipe(case, dtype, wanted)
        made = _run(recipe)
    except (NoRecipe, CannotInline):
        return None
    except Exception:  # whatever a maker raises that is called with wrong arguments
        return None
    if not _equal(made, wanted):
        return None
    check = zlib.crc32(b"".join(made[name].tobytes() for name in wanted))
    lines = (
        *_differs(tuple(wanted), check),
        f'{INDENT}print("this version of NumPy draws other random numbers than the one this was found with")',
        f"{INDENT}sys.exit(2)",
    )
    imports = recipe.imports | {("zlib", "", ""), ("sys", "", "")}
    return replace(recipe, lines=(*recipe.lines, "\n".join(lines)), imports=imports)


def _differs(names: Sequence[str], check: int) -> list[str]:
    """The condition that the arrays' bytes do not have this checksum."""
    condition = 'if zlib.crc32(b"".join(a.tobytes() for a in {})) != {}:'
    line = condition.format(f"({', '.join(names)})", check)
    return [line] if len(line) <= WIDTH else [enclosed("drawn = (", names, ")"), condition.format("drawn", check)]


def _recipe(case: AnyCase, dtype: str, wanted: Mapping[str, np.ndarray]) -> Statements:
    """Recipe of inputs: the same draws in the same order as in ``attention_conformance.conformance.cases.base``."""
    carrier = f"np.{'float32' if dtype == 'bfloat16' else dtype}"
    inputs = case.inputs(dtype)
    sources: list[str] = []
    arguments = ", ".join(inputs.arrays)
    before = case.before_edit(dtype).arrays
    tables = {name: array for name, array in before.items() if array.dtype.kind == "i"}
    drawn = ", ".join(name for name in inputs.arrays if name != "grad_output" and name not in tables)
    shape, usual = _shape(case.shape, has_bias="bias" in case.options)
    order = "" if all(array.flags.c_contiguous for array in inputs.arrays.values()) else ', order="C"'  # of a view
    lines = [
        *shape,
        f"rng = np.random.default_rng({zlib.crc32(case.name.encode())})",
        f"{drawn} = (a.astype({carrier}{order}) for a in {expression(case.data or usual, sources)}(rng, s))",
    ]
    if "lses" in inputs.arrays:  # of a merge: float32 next to outputs in half precision
        lines[-1] = f"outputs, lses = {expression(case.data, sources)}(rng, s)"
        lines.append(f"outputs, lses = outputs.astype({carrier}{order}), lses.astype(np.{inputs.lses.dtype}{order})")
    if "grad_output" in inputs.arrays:
        lines.append(f"grad_output = rng.standard_normal({_shape_of_output(case)}).astype({carrier})")
    lines += [_literal(name, array) for name, array in tables.items()]
    past = getattr(case, "past", None)
    names = [name for name in wanted if name not in inputs.arrays]
    for name in (name for name in names if name in case.options):
        value = case.options[name]
        if not callable(value):
            raise NoRecipe(f"{name} is not drawn")
        lines.append(f"{name} = {expression(value, sources)}(rng, s, {carrier})")
    if past is not None:
        for earlier, name in (("past_key", "k"), ("past_value", "v")):
            parts = f"({name}[:, :, :{past}], {name}[:, :, {past}:])"
            lines.append(f"{earlier}, {name} = (np.ascontiguousarray(a) for a in {parts})")
    if case.edit is not None:
        keywords = ", ".join(f'"{name}": {name}' for name in names)
        edit, made = expression(case.edit, sources), type(inputs)
        lines.append(applied(made.__name__, [*inputs.arrays, f"{{{keywords}}}"], before="x = "))
        lines.append(f"x = {edit[len(_LAMBDA) : -1] if edit.startswith(_LAMBDA) else f'{edit}(x)'}")
        edited = ", ".join(f"x.{name}" for name in inputs.arrays)
        line = f"{arguments} = (np.ascontiguousarray(a) for a in ({edited}))"
        fits = len(line) <= WIDTH
        lines += (
            [line] if fits else [f"edited = ({edited})", f"{arguments} = (np.ascontiguousarray(a) for a in edited)"]
        )
        lines += [f'{name} = x.keywords["{name}"]' for name in names]
        sources.append(f"{made.__module__}:{made.__name__}")
    imports = frozenset({_NUMPY, ("types", "SimpleNamespace", "")})
    return Statements(tuple(lines), imports, tuple(dict.fromkeys(sources)))


def _shape_of_output(case: AnyCase) -> tuple[int, ...]:
    """Shape of the output of sdpa, varlen or mha, whose gradients the case tests."""
    s = case.shape
    if isinstance(s, PackedShape):
        return (sum(s.q_lengths), s.hq, s.dv)
    if isinstance(s, LayerShape):
        return s.rows(s.sq, s.eo if "w_o" in case.options else s.heads * s.dv)
    return (s.b, s.hq, s.sq, s.dv)


def _shape(shape: Any, has_bias: bool) -> tuple[list[str], Callable[..., Any]]:
    """The statements that define ``s`` with all that makers of data use of a shape, and the default maker."""
    if isinstance(shape, PackedShape):
        sizes = [f"{name}={value!r}" for name, value in asdict(shape).items()]
        if isinstance(shape, PagedShape):
            return [applied("SimpleNamespace", [*sizes, f"pages={shape.pages}"], before="s = ")], over_pages
        sizes += [f"{name}={getattr(shape, name)!r}" for name in ("b", "sq", "sk", "scores") if has_bias]
        return [applied("SimpleNamespace", sizes, before="s = ")], across
    if not isinstance(shape, (Shape, LayerShape, LatentShape)):
        raise NoRecipe(f"no recipe for a {type(shape).__name__}")
    sizes = [f"{name}={value!r}" for name, value in asdict(shape).items() if name != "unbatched"]
    lines = [applied("SimpleNamespace", [*sizes, f"scores={shape.scores}"], before="s = ")]
    if isinstance(shape, (Shape, LatentShape)):
        return lines, data.normal(1.0)
    if shape.unbatched:
        rows = "(length, width)"
    else:
        rows = f"(length, {shape.b}, width)" if shape.sequence_first else f"({shape.b}, length, width)"
    return [*lines, f"s.rows = lambda length, width: {rows}"], layer.normal()


def definitions(written: Statements, inliner: Inliner) -> str:
    """The functions that the statements use.  Scripts do without ml_dtypes: their draws are not bfloat16 yet."""
    text = inliner.add(written.sources).replace("ml_dtypes.finfo(", "np.finfo(")
    inliner.imports.discard(("ml_dtypes", "", ""))
    return text


# By bytes.


def packed(case: AnyCase, dtype: str) -> Statements:
    """Compressed bytes, for arrays that cannot be written in any other way."""
    lines = []
    for name, array in arrays(case, dtype).items():
        array = carried(array)
        text = base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()
        width = WIDTH - len(INDENT) - 2
        pieces = [f'{INDENT}"{text[i : i + width]}"' for i in range(0, len(text), width)]
        lines.append("\n".join([f"{name} = (", *pieces, ")"]))
        lines.append(
            f"{name} = np.frombuffer(bytearray(zlib.decompress(base64.b64decode({name}))), np.{array.dtype})"
            f".reshape({array.shape})"
        )
    return Statements(tuple(lines), frozenset({_NUMPY, ("base64", "", ""), ("zlib", "", "")}))


# Trying.


def _run(written: Statements) -> dict[str, Any]:
    """The names that the statements define, run as a script of their own."""
    inliner = Inliner()
    defined = definitions(written, inliner)
    text = "\n".join([import_lines(written.imports | inliner.imports), defined, *written.lines])
    names: dict[str, Any] = {"__name__": __name__}  # a module that exists, as dataclasses require
    with np.errstate(all="ignore"):
        exec(compile(text, "inputs", "exec"), names)  # noqa: S102  (our own source)
    return names


def _equal(made: Mapping[str, Any], wanted: Mapping[str, np.ndarray]) -> bool:
    """Whether all arrays are there, in row-major order, with the same bits once float32 is rounded."""
    for name, array in wanted.items():
        got = made.get(name)
        if not isinstance(got, np.ndarray) or got.dtype != carried(array).dtype or not got.flags.c_contiguous:
            return False
        if got.shape != array.shape or got.astype(array.dtype).tobytes() != array.tobytes():
            return False
    return True
