"""Result file, read: typed records of bounded size, or a named error; the types are also the schema.

Result files come from other machines, by e-mail and from the web.  They are read as data; nothing in them is run.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.impls import compressed, strict
from attention_conformance.impls.strict import Record, TooLarge, Unreadable, WrongFields, WrongFormat

#: Version of the format of result files.
FORMAT = 2

#: The published schema of a line.
SCHEMA = Path(__file__).parents[1] / "results.schema.json"

#: Bytes of the largest line and file that are read, after decompression.  The published run of all implementations has
#: lines of up to 6 kB and 6 MB in all; its footer grows with the failures.
LINE_LIMIT, FILE_LIMIT = 1 << 24, 1 << 30

Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Dtype = Literal["float64", "float32", "float16", "bfloat16"]
Profile = Literal["wide", "fused", "storage", "tf32"]


#: A result file that cannot be used; the text is one sentence with the file and the line.
ResultFileError = strict.FileError


class WrongCounts(ResultFileError):
    """Fewer or more results than the footer counts."""


class LedgerFile(Record, frozen=True):
    """A ledger of known deviations in force, as it was named; conformance/deviations.toml is the suite's own."""

    file: Name
    records: Count
    #: CRC-32 of the file's bytes.
    crc32: Name


class Adapter(Record, frozen=True):
    """Adapter check before the first case: what is wrong between the suite and a plugged-in function."""

    FREE: ClassVar = ("text",)
    implementation: Name
    device: Name
    text: str


class EnvelopeLine(Record, frozen=True):
    """Envelope of an implementation: the calls that it takes, where it does not take all."""

    FREE: ClassVar = ("text", "refusals", "disagreements")
    implementation: Name
    text: str
    source: Annotated[str, Meta(description="declared, static axes, or probed")] = ""
    refusals: Annotated[tuple[str, ...], Meta(description="what a probe was refused")] = ()
    disagreements: Annotated[
        tuple[str, ...], Meta(description="where what is declared and what a few calls showed differ")
    ] = ()


class Header(Record, frozen=True, tag_field="kind", tag="header", forbid_unknown_fields=False, omit_defaults=True):
    """The first line: what ran, where, and with what.  A later version of the suite may say more of a run."""

    format: Count
    spec: Name
    started: Annotated[str, Meta(description="UTC, ISO 8601")] = ""
    machine: str = ""
    system: str = ""
    python: str = ""
    versions: dict[Name, Name] = field(default_factory=dict)
    shard: Annotated[Name, Meta(description="part I of N of a run, with --shard I/N")] | None = None
    ledgers: tuple[LedgerFile, ...] | None = None
    not_installed: tuple[Name, ...] = ()
    profiles: Annotated[
        dict[Name, Profile],
        Meta(description="declared profile by implementation/dtype or implementation/cuda-dtype"),
    ] = field(default_factory=dict)
    adapters: tuple[Adapter, ...] = ()
    envelopes: tuple[EnvelopeLine, ...] = ()


class ResultLine(Record, frozen=True, tag_field="kind", tag="result"):
    """Result of one case of one implementation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("share", "run_seconds", "prepare_seconds"):
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name!r} is {value}")

    FREE: ClassVar = ("broken", "reason", "error_pattern", "message", "side_effects")
    implementation: Name
    device: Name
    dtype: Dtype
    case: Name
    clauses: tuple[Name, ...]
    outcome: Outcome
    failure: Failure | None
    broken: str | None
    reason: str
    error_pattern: Annotated[str, Meta(description="what a wrong output looks like, empty for nothing known")]
    message: str
    profile: Profile | None
    meets: tuple[Profile, ...]
    share: Annotated[
        Seconds | Literal["inf"] | None, Meta(description="worst error ÷ bound; the text inf where the class is wrong")
    ]
    run_seconds: Seconds
    prepare_seconds: Seconds
    side_effects: Annotated[
        tuple[str, ...], Meta(description='what the call did besides, such as "prints: 12 bytes"; fails nothing')
    ] = ()
    sizes: Annotated[
        tuple[Count, ...], Meta(description="B, Hq, Hkv, Sq, Sk, D, Dv of a case fitted to an envelope")
    ] = ()


class ResultColumns(Record, frozen=True, tag_field="kind", tag="results"):
    """Many results by column, as published files have them: the values of a field in the order of the results."""

    FREE: ClassVar = ("columns",)
    columns: Annotated[dict[Name, tuple[Any, ...]], Meta(description="fields of a result line, each of as many values")]

    def lines(self) -> Iterator[ResultLine]:
        """The results one by one.  Raises WrongType or ValueError for columns that are not results."""
        for values in zip(*self.columns.values(), strict=True):
            yield strict.convert({"kind": "result", **dict(zip(self.columns, values, strict=True))}, ResultLine)


class Explanation(Record, frozen=True):
    """Faults that give what an implementation gives, and in which cases."""

    FREE: ClassVar = ("title",)
    faults: tuple[Name, ...]
    title: str
    cases: tuple[Name, ...]
    contradicted: Annotated[Count, Meta(description="passed cases that do not show it")] = 0


class Diagnosis(Record, frozen=True):
    """Diagnosis of the failures of an implementation on a device, the best explanation first."""

    FREE: ClassVar = ("common_features",)
    implementation: Name
    device: Name
    failures: Count
    explanations: tuple[Explanation, ...]
    common_features: Annotated[
        tuple[str, ...], Meta(description="what failures that nothing explains have in common")
    ] = ()


class Footer(Record, frozen=True, tag_field="kind", tag="footer"):
    """The last line: how many results of each outcome there are, and what explains the failures."""

    counts: dict[Name, Count]
    diagnoses: tuple[Diagnosis, ...] = ()


_Line = Header | ResultLine | ResultColumns | Footer

_KINDS: Mapping[str, type[_Line]] = {
    "header": Header,
    "result": ResultLine,
    "results": ResultColumns,
    "footer": Footer,
}


def schema() -> dict[str, Any]:
    """The JSON schema of a line, as ``results.schema.json`` has it.

    Returns
    -------
    dict[str, Any]
        JSON Schema, 2020-12.
    """
    return strict.schema(f"A line of a conformance result file, format {FORMAT}", *_KINDS.values())


def schema_text() -> str:
    """The content of ``results.schema.json``.

    Returns
    -------
    str
        JSON and a last line break.
    """
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Run:
    """A result file, read: what ran where, and every result."""

    header: Header
    results: tuple[Result, ...]
    #: False if the footer is missing: the run was cut off.
    complete: bool
    #: Diagnoses of the failures, from the footer.
    diagnoses: tuple[Diagnosis, ...] = ()


def read(path: Path) -> Run:
    """Read a result file.

    Parameters
    ----------
    path
        JSON lines, plain or compressed with Zstandard, of single results or of many by column.

    Returns
    -------
    Run
        Everything in the file; not complete if the run was cut off.

    Raises
    ------
    ResultFileError
        For the first thing that is wrong, with the file and line.
    """
    records = _lines(path)
    _, header = next(records, (1, None))
    if not isinstance(header, Header):
        raise WrongFields(f"{path} is not a conformance result file: its first line is not a header")
    results: list[Result] = []
    footer: Footer | None = None
    for number, record in records:
        if isinstance(record, Header) or footer is not None:
            raise WrongFields(f"{path}, line {number}: a {record.__struct_config__.tag} where none can be")
        if isinstance(record, Footer):
            footer = record
        elif isinstance(record, ResultColumns):
            results += map(_result, _of_columns(record, f"{path}, line {number}"))
        else:
            results.append(_result(record))
    if footer is None:
        return Run(header, tuple(results), complete=False)
    if footer.counts != dict(Counter(result.outcome.value for result in results)):
        raise WrongCounts(f"{path} has {len(results)} results, its footer counts {footer.counts}")
    return Run(header, tuple(results), complete=True, diagnoses=footer.diagnoses)


def _of_columns(record: ResultColumns, where: str) -> Iterator[ResultLine]:
    try:
        yield from record.lines()
    except ValueError as error:  # a WrongType, or columns of several lengths
        raise WrongFields(f"{where}: not results ({error})") from None


def _lines(path: Path) -> Iterator[tuple[int, _Line]]:
    """The number and the record of each line; a line that was cut off while being written is skipped."""
    try:
        with compressed.opened(path, FILE_LIMIT) as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT + 1), b""), 1):
                if len(line) > LINE_LIMIT:
                    raise TooLarge(f"{path}, line {number} has more than {LINE_LIMIT} bytes")
                if line.endswith(b"\n"):
                    yield number, _record(line, f"{path}, line {number}")
    except compressed.TooLarge as error:
        raise TooLarge(f"{path} {error}") from None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror or error}") from None


def _record(line: bytes, where: str) -> _Line:
    try:
        value = strict.loads(line)
    except strict.StrictError as error:
        raise error.named(where) from None
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise WrongFields(f"{where}: expected a header, result or footer record")
    if kind == "header" and value.get("format") != FORMAT:
        given = value.get("format")
        old = type(given) is int and given < FORMAT
        why = ": an older version of the suite wrote it, run it again" if old else ""
        raise WrongFormat(f"{where} has format {strict.short_value(given)}, expected {FORMAT}{why}")
    try:
        return strict.convert(value, _KINDS[kind])
    except strict.WrongType as error:
        raise WrongFields(f"{where}: not a {kind} ({error})") from None


def _result(line: ResultLine) -> Result:
    fields = {name: getattr(line, name) for name in line.__struct_fields__}
    return Result(**fields | {"share": None if line.share is None else float(line.share)})


def from_record(record: Mapping[str, Any]) -> Result:
    """The result of a record.

    Parameters
    ----------
    record
        A record as ``as_record`` gives it.

    Returns
    -------
    Result
        The result.

    Raises
    ------
    strict.WrongType
        A ValueError, for data that is not a result.
    """
    return _result(strict.convert(dict(record), ResultLine))


def as_record(result: Result) -> dict[str, Any]:
    """A result as plain data, which JSON can hold: an infinite share is the text "inf".

    Parameters
    ----------
    result
        Any result.

    Returns
    -------
    dict[str, Any]
        JSON values by name.
    """
    record = dict(vars(result))  # flat; dataclasses.asdict would copy 50,000 results for seconds
    record["share"] = result.share if result.share is None or math.isfinite(result.share) else str(result.share)
    for name in ("side_effects", "sizes"):
        if not record[name]:
            del record[name]
    return record
