"""Kill matrix per envelope: which faults show in the calls that a kind of kernel takes, and which cases catch them.

A fault is judged on the cases fitted to the envelope, and then on those at the sizes of kernels, until two have caught
it; those that caught it when the matrices were last written come first.  A fault that no case catches is looked for by
random problems inside the envelope, and by every case at a random shape inside it: where one shows the fault, the suite
has a hole, which is named; where none does, the fault does not show in this envelope.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from attention_conformance.conformance.cases import AnyCase, every_case, kernel_cases, serving_cases
from attention_conformance.conformance.cases import serving as serving_design
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.envelopes import KINDS, Kind, Proposed, random_shape
from attention_conformance.conformance.cases.fit import dtypes_for, fit, fit_kernels, resized
from attention_conformance.conformance.cases.kernel_paths import Call, KernelPath, kernel_paths
from attention_conformance.conformance.cases.kernels import OPTION_SETS, REQUESTED, call_of, telling
from attention_conformance.conformance.cases.store import FITTED, RANDOM
from attention_conformance.conformance.faults import FAULTS, PATH_FAULTS, Fault
from attention_conformance.conformance.faults.gradients.sdpa import OverRanks
from attention_conformance.conformance.faults.kill_matrix import LEAST, Row
from attention_conformance.conformance.faults.models.on_path import Mistake
from attention_conformance.conformance.faults.models.steps import correct
from attention_conformance.conformance.faults.trials import trial
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.properties import serving
from attention_conformance.conformance.properties.drawn import (
    GradientProblem,
    log_uniform,
    once,
    problem_of,
    with_past,
)
from attention_conformance.impls import compressed, strict
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.impls.process.pool import Pool

FORMAT = "attention-conformance envelopes 1"

#: The matrices that are kept; they take minutes to compute.
PUBLISHED = Path(__file__).with_name(f"envelopes.json{compressed.SUFFIX}")

#: The most bytes of that file that are read.
_MOST_BYTES = 1 << 24

#: Number of random problems by which a fault is looked for; for sdpa and its gradients, each case at a random shape is
#: tried in addition.
SEARCHED = {"sdpa": 200, "sdpa_grad": 40, "varlen": 300, "varlen_grad": 300, "paged": 600, "merge": 300}

#: Operators whose cases are also tried at random sizes.
SEARCHED_BY_SIZE = ("sdpa", "sdpa_grad")

#: Number of calls on a path by which a fault on it is looked for, and of calls that are drawn to find them.
ON_PATH, DRAWN = 40, 6000

#: The largest B · Hq · Sq · Sk · (D + Dv) of a random problem, where the envelope allows it.
MOST = 1 << 20

#: The most elements of a case at the sizes of kernels on which faults without a path are judged: one token over a cache
#: of 256, and anything smaller.
LARGEST = 9 << 16

#: The envelope in which random problems are also tried on faults that cases catch: it has few faults and small calls.
WITH_POWER = "one query"


@dataclass(frozen=True)
class Found:
    """Result of a fault in an envelope: the cases that catch it, or a problem that shows it."""

    fault: str
    caught: dict[str, tuple[str, ...]]
    #: A problem that shows it where no case catches it, "" for none.
    example: str = ""
    #: Whether its path is one that no call of the envelope takes.
    outside: bool = False

    @property
    def state(self) -> str:
        """``twice``, ``once``, ``missed``, ``hidden`` (it does not show), or ``outside``."""
        if self.caught:
            return "twice" if len(self.caught) >= LEAST else "once"
        return "missed" if self.example else "outside" if self.outside else "hidden"


@dataclass(frozen=True)
class Matrix:
    """The kill matrix of one envelope."""

    name: str
    found: tuple[Found, ...]
    #: Number of faults that cases catch and that the random problems show by themselves, and of those that were tried.
    power: tuple[int, int] = (0, 0)
    counts: dict[str, int] = field(default_factory=dict)


def fault_named(name: str) -> Fault:
    """A fault, on a path or not."""
    return FAULTS[name] if name in FAULTS else PATH_FAULTS[name]


def faults_in(kind: Kind) -> list[str]:
    """The faults of its operators, except those between ranks; those on paths, too, unless the kind serves."""
    own = [n for n, fault in FAULTS.items() if fault.operator in kind.operators and not between_ranks(fault)]
    return own if kind.serves else [*own, *PATH_FAULTS]


def between_ranks(fault: Fault) -> bool:
    """Whether a fault is one of attention over several ranks, each of which calls a kernel that may be right."""
    return fault.group == "sdpa/ranks" or issubclass(fault.make, OverRanks)


def cases_in(kind: Kind) -> list[AnyCase]:
    """The cases of its operators at sizes inside its envelope, smallest first."""
    return _asked(kind, every_case().values())


def kernel_cases_in(kind: Kind) -> list[AnyCase]:
    """The cases at the sizes of kernels inside its envelope, smallest first; of equal calls only those needed."""
    tier: Iterable[AnyCase] = serving_cases().values() if kind.serves else kernel_cases().values()
    own = [c for c in tier if c.operator in kind.operators and kind.takes(c)]
    return [replace(case, store=FITTED) for case in fit_kernels(own, kind.envelope, kind.dtypes)]


def _asked(kind: Kind, cases: Iterable[AnyCase]) -> list[AnyCase]:
    own = (case for case in cases if case.operator in kind.operators and kind.takes(case))
    fitted = (fit(case, kind.envelope) for case in own)
    found = (case for case in fitted if not case.unfit and dtypes_for(case, kind.dtypes))
    return sorted(found, key=lambda case: case.size)


def judged(name: str, pool: Pool, faults: Iterable[str] = (), enough: int = LEAST, *, power: bool = False) -> Matrix:
    """The kill matrix of an envelope.

    The order is case by case: what faults have in common on a case is computed once.  A fault that ``enough`` cases
    have caught is judged on no more.

    Parameters
    ----------
    name
        Name of one of KINDS.
    pool
        Processes to call the faults in.
    faults
        Names in FAULTS and PATH_FAULTS; by default all that the kind of kernel may have.
    enough
        Number of cases that are to catch each fault.
    power
        Try the random problems also on the faults that cases catch, which says how many they show.
    """
    kind = KINDS[name]
    rows = [Row(fault_named(each), pool) for each in faults or faults_in(kind)]
    small, likely, already = cases_in(kind), _likely(), _requested()
    large = sorted(
        kernel_cases_in(kind), key=lambda case: case.name not in already
    )  # a run asks for no more than it must
    fitted = {case.name for case in small}
    for first in (True, False):
        for case in (*small, *large):
            left = [row for row in rows if len(row.caught) < enough and row.takes(case)]
            left = [row for row in left if (case.name in likely.get(row.fault.name, ())) is first]
            any_size = bool(kind.serves) or case.shape.elements <= LARGEST or case.name in fitted
            _judge(case, kind, [row for row in left if any_size or _path(row)])
    examples, seen = _searched(name, kind, [row for row in rows if not row.caught and not _path(row)])
    found = []
    for row in rows:
        outside = False
        if _path(row) and not row.caught:
            example, outside = _searched_on_path(kind, row)
            examples[row.fault.name] = example
        found.append(Found(row.fault.name, dict(row.caught), examples.get(row.fault.name, ""), outside))
    tried = [row for row in rows if row.caught and not _path(row) and row.fault.operator == "sdpa"] if power else []
    shown, _ = _searched(name, kind, tried, random_only=True)
    counts = {"cases": len(small), "kernel cases": len(large), "problems": seen}
    return Matrix(name, tuple(found), (len(shown), len(tried)), counts)


def _requested() -> set[str]:
    """The cases of the designs that a run asks for."""
    return {name for file in TIERS for name in file.read_text(encoding="utf-8").split()}


def _likely() -> dict[str, set[str]]:
    """The cases that caught each fault in some envelope when the matrices were last written."""
    found: dict[str, set[str]] = {}
    for each in published()["envelopes"] if PUBLISHED.exists() else ():
        for name, fault in each["faults"].items():
            found.setdefault(name, set()).update(fault.get("caught", ()))
    return found


def _path(row: Row) -> bool:
    return row.fault.name in PATH_FAULTS


def _judge(case: AnyCase, kind: Kind, rows: list[Row]) -> None:
    for row in rows:
        asked = [dtype for dtype in dtypes_for(case, kind.dtypes) if not _path(row) or _on_path(row, case, dtype)]
        if asked := [dtype for dtype in asked if row.differs(case, dtype)]:
            row.judge(case, asked)


def _on_path(row: Row, case: Any, dtype: str) -> bool:
    """Whether a case takes a fault's path and has the options that it needs; else the fault is correct there."""
    make = cast("type[Mistake]", row.fault.make)
    call = replace(call_of(case), dtype=dtype)
    return make.path.taken(call) and not make.shows_with() - call.options


# Search.


def problems(name: str, kind: Kind, *, random_only: bool = False) -> Iterator[tuple[AnyCase, str]]:
    """Random problems inside an envelope, always the same, each with its dtype; and every case at a random shape."""
    for operator in kind.serves:
        yield from _serving_problems(name, kind, operator)
    for operator in () if kind.serves else kind.operators:
        for index in range(SEARCHED[operator]):
            rng = np.random.default_rng((zlib.crc32(f"{name} {operator}".encode()), index))
            shape, dtype = random_shape(rng, kind.envelope, MOST), str(rng.choice(kind.dtypes))
            problem = problem_of(rng, f"search-{name}-{operator}-{index}", shape)
            if operator == "sdpa_grad":
                problem = replace(problem, return_weights=False, return_lse=False)
                yield once(GradientProblem(problem, log_uniform(rng, 0.01, 30.0)), dtype), dtype
            elif rng.random() < 0.5:
                case = once(with_past(rng, problem), dtype)
                yield (case if kind.past else replace(case, past=None)), dtype
            else:
                yield once(problem, dtype), dtype
        if random_only or kind.envelope.static:
            continue  # where there is one shape, the fitted cases have it already
        for case in every_case().values():
            asked = dtypes_for(case, kind.dtypes)
            if case.operator == operator and asked and not case.keywords & kind.lacking and not case.after:
                rng = np.random.default_rng((zlib.crc32(f"{name} {case.name}".encode()), 1))
                found = resized(case, random_shape(rng, kind.envelope, MOST))
                yield replace(found, name=f"{case.name}~{name}", store=RANDOM), str(rng.choice(asked))


def _serving_problems(name: str, kind: Kind, operator: str) -> Iterator[tuple[AnyCase, str]]:
    """Random problems of a serving operator, fitted to an envelope; every third paged one has caches with scales."""
    for index in range(SEARCHED[operator]):
        rng = np.random.default_rng((zlib.crc32(f"{name} {operator}".encode()), index))
        form = "quantised" if operator == "paged" and index % 3 == 0 else operator
        drawn = serving.drawn(serving.of_rng(rng), form, OPERATORS[operator].keywords, _always(kind)).case()
        case = fit(drawn, kind.envelope)
        if not case.unfit and kind.takes(case):
            yield replace(case, store=RANDOM), str(rng.choice(kind.dtypes))


def _always(kind: Kind) -> frozenset[str]:
    """Keywords that all calls of an envelope have."""
    return frozenset({"is_causal"}) if kind.calls.startswith("causal") else frozenset()


def _searched(name: str, kind: Kind, rows: list[Row], *, random_only: bool = False) -> tuple[dict[str, str], int]:
    """A problem for each fault that some problem shows, and the number of problems that were tried."""
    found: dict[str, str] = {}
    seen = 0
    for case, dtype in problems(name, kind, random_only=random_only):
        seen += 1
        left = [row for row in rows if row.takes(case) and row.fault.name not in found]
        left = [row for row in left if _differs(row, case, dtype)]
        if left and _is_sound(case, dtype, left[0]):
            found |= {row.fault.name: described(case, dtype) for row in left if row.fails(case, dtype)}
    return found, seen


def _differs(row: Row, case: AnyCase, dtype: str) -> bool:
    """Whether a fault may show on a problem, so that the rest of it is worth its time."""
    try:
        return row.differs(case, dtype)
    except Exception:  # whatever its data or its edit raises at this shape
        return False


def _is_sound(case: AnyCase, dtype: str, row: Row) -> bool:
    """Whether the correct model passes: a case at sizes for which it was not made may be no valid input."""
    try:
        sound = (
            trial(correct(row.fault.make), case, dtype, row.plugged.profile(dtype)).verdict.outcome is Outcome.PASSED
        )
        own = case.operator not in SEARCHED_BY_SIZE or case.inputs(dtype).arrays["q"].shape == _q_shape(case.shape)
        return sound and own  # data may have sizes of its own
    except Exception:  # as above
        return False


def _q_shape(s: Shape) -> tuple[int, ...]:
    return s.b, s.hq, s.sq, s.d


def _searched_on_path(kind: Kind, row: Row) -> tuple[str, bool]:
    """A call that shows a fault on a path, "" for none; and whether no call of the envelope takes the path."""
    make = cast("type[Mistake]", row.fault.make)
    path = kernel_paths()[make.path.id]
    proposed, needed = Proposed().with_edges(path.edges), make.shows_with()
    if not any(_has_dtype(path, dtype) for dtype in kind.dtypes) or not _has_sizes(path, kind, proposed):
        return "", True
    able = [name for name, each in OPTION_SETS.items() if needed - {"lse"} <= _call(Shape(), "", each.makers).options]
    rng = np.random.default_rng(zlib.crc32(row.fault.name.encode()))
    outside, tried = True, 0
    for index in range(DRAWN):
        some = able if able and rng.random() < 0.5 else list(OPTION_SETS)
        dtype, option = kind.dtypes[rng.integers(len(kind.dtypes))], some[rng.integers(len(some))]
        s = random_shape(rng, kind.envelope, MOST, proposed)
        lse = {"return_lse": True} if "lse" in needed or rng.random() < 0.5 else {}
        options: dict[str, Any] = {**OPTION_SETS[option].makers, **lse}
        call = _call(s, dtype, options)
        if not path.taken(call):
            continue
        outside = False
        if needed - call.options:
            continue
        base = kernel_cases()[next(iter(kernel_cases()))]
        case = replace(
            base, name=f"search-{index}", shape=s, data=telling, options=options, dtypes=(dtype,), store=RANDOM
        )
        tried += 1
        if _differs(row, case, dtype) and _is_sound(case, dtype, row) and row.fails(case, dtype):
            return described(case, dtype), False
        if tried == ON_PATH:
            break
    return "", outside


def _call(s: Shape, dtype: str, options: Mapping[str, Any]) -> Call:
    return Call.of(s.b, s.hq, s.hkv, s.sq, s.sk, s.d, s.dv, dtype, options)


def _has_dtype(path: KernelPath, dtype: str) -> bool:
    """Whether a path is taken in a dtype at all."""
    return all(each.holds(_call(Shape(), dtype, {})) for each in path.when if each.left == "dtype")


def _has_sizes(path: KernelPath, kind: Kind, proposed: Proposed) -> bool:
    """Whether each size of a path's conditions can, by itself, be drawn for a shape; it saves draws, which are slow."""
    inside = proposed.inside(kind.envelope)
    for one, other, sizes in (("sq", "sk", kind.envelope.query_lengths), ("dv", "d", kind.envelope.value_widths)):
        inside[one] += tuple(n for n in inside[other] if n in sizes)  # one may be drawn as the other
    alone = [each for each in path.when if each.left in inside and not isinstance(each.right, str)]
    return all(any(each.of(n, {}) for n in inside[each.left]) for each in alone)


def described(case: AnyCase, dtype: str) -> str:
    """A problem in one line: B × Hq × Hkv, Sq × Sk, D × Dv, dtype, options."""
    s = case.shape
    options = ", ".join(sorted(case.keywords)) or "no option"
    return f"{case.name}: {s.b} × {s.hq} × {s.hkv}, {s.sq} × {s.sk}, {s.d} × {s.dv}; {dtype}; {options}"


# What is published.


def as_json(matrices: Iterable[Matrix]) -> dict[str, Any]:
    """Matrices as plain data."""
    return {
        "format": FORMAT,
        "envelopes": [
            {
                "name": each.name,
                "line": KINDS[each.name].line,
                "counts": each.counts,
                "power": list(each.power),
                "faults": {
                    found.fault: {
                        "state": found.state,
                        **({"caught": {n: " ".join(d) for n, d in found.caught.items()}} if found.caught else {}),
                        **({"example": found.example} if found.example else {}),
                    }
                    for found in each.found
                },
            }
            for each in matrices
        ],
    }


def read(path: Path) -> dict[str, Any]:
    """The matrices of a file."""
    found: dict[str, Any] = strict.loads(compressed.read(path, _MOST_BYTES))
    return found


def published() -> dict[str, Any]:
    """The matrices that are kept."""
    return read(PUBLISHED)


#: The tiers of designed cases: the file of the cases that a run asks for, and a function for all cases of the tier.
TIERS: dict[Path, Callable[[], Mapping[str, AnyCase]]] = {
    REQUESTED: kernel_cases,
    serving_design.REQUESTED: serving_cases,
}


def asked(matrices: Mapping[str, Any], tier: Callable[[], Mapping[str, AnyCase]] = kernel_cases) -> list[str]:
    """The cases of a tier that some fault needs to be caught twice, according to matrices as plain data."""
    faults = (fault for each in matrices["envelopes"] for fault in each["faults"].values())
    return sorted({name for fault in faults for name in fault.get("caught", {}) if name in tier()})


def write(path: Path, names: Sequence[str] = ()) -> str:
    """Compute the matrices of some envelopes, all by default, and write them to a file, each as soon as it is known.

    The file keeps what it has of the other envelopes.  With the published matrices, the lists of cases that every run
    asks for are written too.

    Returns
    -------
    str
        A line for each envelope, with the number of faults in each state.

    Raises
    ------
    KeyError
        For an unknown name.
    """
    lines = []
    known = {each["name"]: each for each in read(path)["envelopes"]} if path.exists() else {}
    for name in names or KINDS:
        matrix = judged(name, Pool(in_process=True), power=name == WITH_POWER)
        known[name] = as_json([matrix])["envelopes"][0]
        found = {"format": FORMAT, "envelopes": [known[each] for each in KINDS if each in known]}
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        if path.suffix == compressed.SUFFIX:
            compressed.write(path, text.encode())
        else:
            path.write_text(text, encoding="utf-8")
        if path.resolve() == PUBLISHED:
            for file, tier in TIERS.items():
                file.write_text("".join(f"{case}\n" for case in asked(found, tier)), encoding="utf-8")
        states = Counter(each.state for each in matrix.found)
        lines.append(f"{name}: {', '.join(f'{n} {state}' for state, n in states.items())}")
    return "\n".join([*lines, str(path)])
