"""View of the gallery for a page: by library and clause group, by question, by finding, and since the last version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from attention_conformance.conformance.diagnosis.explain import in_words
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger import divergence
from attention_conformance.conformance.ledger.questions import QUESTIONS, Question
from attention_conformance.conformance.results import Diagnosis
from attention_conformance.conformance.run.causes import Told, causes
from attention_conformance.impls.gallery import Entry, Finding, Says
from attention_conformance.reports.gallery import stored
from attention_conformance.reports.gallery.stored import Record
from attention_conformance.reports.model import groups
from attention_conformance.reports.model.model import Model

#: Results of a cell of a clause group, the worst first.
FAILED, BY_DESIGN, PASSED, UNSUPPORTED = "failed", "by design", "passed", "unsupported"

#: Clause groups of the layer, by the numbers of its clauses, so that layers and functions share columns.
LAYER = {
    "Scores": (1, 2, 3, 4, 5, 6, 7, 11, 12, 16, 17),
    "Masks": (8,),
    "Causal": (9,),
    "Windows and lengths": (10,),
    "Fully masked rows": (13,),
    "Softmax and output": (14, 15),
    "Accuracy and dtype": (18,),
    "Call consistency": (23,),
    "Input validation": (19, 20, 21, 22),
}

_OF_LAYER = {f"MHA-{number}": name for name, numbers in LAYER.items() for number in numbers}

#: The questions of the page, by the case that asks each, in words that need no spec.
ASKED = {
    "empty-row": "A row fully masked by a boolean mask",
    "bias-minus-inf-row": "A row fully masked by a bias of −inf",
    "causal-more-keys": "Causal with fewer queries than keys: where does the diagonal begin?",
    "causal-more-queries": "Causal with more queries than keys: where does the diagonal begin?",
    "combined-mask-causal": "A mask together with causal",
    "scale-zero": "A scale of 0, which gives all keys the same weight",
    "scale-negative-causal": "A negative scale with causal",
    "empty-keys": "No keys, as with an empty cache",
    "value-width-larger": "Values of a different width than keys",
    "nan-query-causal": "NaN in a query: does the result show it?",
    "masked-largest-values": "A masked score that overflows",
    "invalid-lengths": "Invalid input: k and v of unequal length",
    "invalid-dtypes": "Invalid input: q, k and v of unequal dtype",
    "mha-empty-row": "A row of a layer fully masked by a boolean mask",
}

#: Words for the spec's short answers, where they need any.
MEANS = {
    "zeros": "zeros",
    "top left": "at the top left",
    "ok": "computed",
    "both hold": "both hold",
    "refused": "an error",
    "NaN": "NaN",
    "kept out": "no effect",
    "mean of v": "the mean of v",
    "b_o": "only the bias of the output projection",
}


def group(clause: str) -> str:
    """The clause group of the page."""
    return _OF_LAYER.get(clause) or groups.group(clause)


@dataclass(frozen=True)
class Cell:
    """A clause group of an entry: its worst outcome, and the numbers of cases by outcome."""

    worst: str
    failed: int
    by_design: int
    executed: int


@dataclass(frozen=True)
class Row:
    """An entry that has results."""

    entry: Entry
    record: Record
    cells: Mapping[str, Cell]
    #: Failures, including those that are a choice, with what explains each.
    failures: tuple[Told, ...]
    #: What the diagnosis found; None where the results were kept without it.
    diagnosis: Diagnosis | None
    passed: int
    failed: int
    by_design: int
    unsupported: int

    @property
    def version(self) -> str:
        """Version of the package that is judged."""
        return self.record.versions.get(self.entry.package, "").partition("+")[0]

    @property
    def named(self) -> list[str]:
        """The causes that the diagnosis names, each in a sentence, the cause of most failures first."""
        count = Counter(told.explanation for told in self.failures if told.explanation)
        return [text for text, _ in count.most_common()]

    @property
    def left(self) -> list[str]:
        """The failures that nothing explains and that are no choice, by the way they fail, a sentence each."""
        some = (t for t in self.failures if not t.explanation and not by_design(self.entry, t.result))
        return [cause.sentence for cause in sorted(causes(some), key=lambda cause: -len(cause.failures))]

    @property
    def explained(self) -> int:
        """Number of failures with a named cause."""
        return sum(bool(told.explanation) for told in self.failures)


@dataclass(frozen=True)
class Asked:
    """A question, the spec's answer, and the entries that give each answer, the spec's first."""

    text: str
    right: str
    answers: Mapping[str, tuple[str, ...]]
    silent: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A case whose outcome differs from that in the previous version."""

    name: str
    versions: str
    case: str
    was: str
    now: str


@dataclass(frozen=True)
class View:
    """Everything that the page shows."""

    rows: tuple[Row, ...]
    #: Entries without results, with their records, which say why.
    without: tuple[tuple[Entry, Record], ...]
    groups: tuple[str, ...]
    asked: tuple[Asked, ...]
    changes: tuple[Change, ...]
    #: Whether any entry has a previous version.
    has_before: bool
    where: str
    findings: tuple[tuple[Entry, Finding], ...] = field(default=())

    @property
    def packages(self) -> int:
        """Number of packages that have results."""
        return len({row.entry.package for row in self.rows})

    @property
    def gravest(self) -> list[tuple[Entry, Finding]]:
        """Findings that a person called grave, one of each sentence: contradictions first, then most cases."""
        grave = [(entry, each) for entry, each in self.findings if each.is_grave]
        failed = {row.entry.name: [told.result.broken for told in row.failures] for row in self.rows}

        def order(one: tuple[Entry, Finding]) -> tuple[bool, int]:
            entry, each = one
            return each.says is not Says.CONTRADICTS, -sum(name in each.clauses for name in failed[entry.name])

        return list({each.what: (entry, each) for entry, each in sorted(grave, key=order, reverse=True)}.values())[::-1]


def by_design(entry: Entry, result: Result) -> bool:
    """Whether a failure is only a choice: an input is accepted that a finding says is accepted by design."""
    chosen = {clause for each in entry.findings if each.says is Says.BY_DESIGN for clause in each.clauses}
    return result.failure is Failure.NO_ERROR and result.broken in chosen


def view(known: Mapping[str, Entry], found: Mapping[str, Record], model: Model, folder: Path) -> View:
    """The view of records and results that ``stored.model`` read from a folder.

    Parameters
    ----------
    known
        Entries of the manifest by their names.
    found
        Records by name.
    model
        The results.
    folder
        The same folder, whose ``before`` has the results of other versions.

    Returns
    -------
    View
        Rows, findings and changes.
    """
    results: dict[str, list[Result]] = {}
    for result in model.records.results:
        results.setdefault(result.implementation, []).append(result)
    diagnoses = {each.implementation: each for source in model.records.sources for each in source.diagnoses}
    rows = tuple(
        _row(known[name], found[name], results[name], diagnoses.get(known[name].target))
        for name in found
        if name in results
    )
    cells = (item for row in rows for item in row.cells.items())
    names = groups.ordered(name for name, cell in cells if cell.worst != UNSUPPORTED)
    changes, has_before = _changes(found, results, folder)
    environments = [source.environment for source in model.records.sources]
    days = sorted({str(each.get("started", ""))[:10] for each in environments})
    machines = sorted({f"{each.get('machine')}, {str(each.get('system')).partition('-')[0]}" for each in environments})
    return View(
        rows=rows,
        without=tuple((known[name], each) for name, each in found.items() if name not in results),
        groups=tuple(names),
        asked=tuple(_asked(model.records.results)),
        changes=changes,
        has_before=has_before,
        where=f"{'; '.join(machines)}; {' to '.join(dict.fromkeys((days[0], days[-1])))}",
        findings=tuple((row.entry, each) for row in rows for each in row.entry.findings),
    )


def _row(entry: Entry, found: Record, results: Sequence[Result], diagnosis: Diagnosis | None) -> Row:
    cells: dict[str, Counter[str]] = {}
    kinds = {id(r): _kind(entry, r) for r in results}
    for r in results:
        about = {r.broken} if r.broken else set(r.clauses)
        for name in {group(clause) for clause in about}:
            cells.setdefault(name, Counter())[kinds[id(r)]] += 1
    total = Counter(kinds.values())
    made = {}
    for name, counts in cells.items():
        worst = next(kind for kind in (FAILED, BY_DESIGN, PASSED, UNSUPPORTED) if counts[kind])
        executed = counts[FAILED] + counts[BY_DESIGN] + counts[PASSED]
        made[name] = Cell(worst, counts[FAILED], counts[BY_DESIGN], executed)
    failures = tuple(_told(entry, [r for r in results if kinds[id(r)] in (FAILED, BY_DESIGN)], diagnosis))
    counted = (total[kind] for kind in (PASSED, FAILED, BY_DESIGN, UNSUPPORTED))
    return Row(entry, found, made, failures, diagnosis, *counted)


def _told(entry: Entry, failures: Sequence[Result], diagnosis: Diagnosis | None) -> Iterable[Told]:
    """Failures with what explains each, as ``check`` words it; a failure that is a choice has no explanation."""
    counted = [r.case for r in failures if not by_design(entry, r)]
    texts: dict[str, str] = {}
    for each in diagnosis.explanations if diagnosis else ():
        fits = sum(case in each.cases for case in counted)
        text = in_words(each.title.rstrip(","), fits, len(counted), each.contradicted)
        texts |= {case: f"Diagnosis: {text}" for case in each.cases if case not in texts}
    for r in failures:
        yield Told(r, (texts[r.case],) if r.case in texts and not by_design(entry, r) else ())


def _kind(entry: Entry, result: Result) -> str:
    if result.outcome is Outcome.FAILED:
        return BY_DESIGN if by_design(entry, result) else FAILED
    return PASSED if result.outcome in (Outcome.PASSED, Outcome.ADVISORY, Outcome.KNOWN_DEVIATION) else UNSUPPORTED


def _asked(results: Iterable[Result]) -> Iterable[Asked]:
    chosen = [question for question in QUESTIONS if question.case in ASKED]
    tables = {each.operator: each for each in divergence.answers(results, chosen)}
    for question in sorted(chosen, key=lambda one: list(ASKED).index(one.case)):
        said: dict[str, list[str]] = {}
        for table in tables.values():
            if question in table.questions:
                at = table.questions.index(question)
                for (name, _), row in table.answers.items():
                    said.setdefault(row[at], []).append(name)
        silent = said.pop(divergence.UNSUPPORTED, [])
        said.pop(divergence.NOT_ASKED, None)
        if said:
            yield Asked(
                ASKED[question.case], MEANS.get(question.right, question.right), _plain(said, question), tuple(silent)
            )


def _plain(said: Mapping[str, Sequence[str]], question: Question) -> dict[str, tuple[str, ...]]:
    """Answers without their marks, the spec's first and then the most frequent."""
    order = sorted(said, key=lambda text: (text.startswith("**"), -len(said[text])))
    return {text.strip("*") if text.startswith("**") else MEANS.get(text, text): tuple(said[text]) for text in order}


def _changes(
    found: Mapping[str, Record], results: Mapping[str, Sequence[Result]], folder: Path
) -> tuple[tuple[Change, ...], bool]:
    """Cases that both versions ran, with different outcomes."""
    changes, has_before = [], False
    for name, new in found.items():
        old = stored.before(folder, name)
        if old is None or name not in results:
            continue
        has_before = True
        was = {(r.case, r.dtype): _short(r) for r in old[1]}
        packages = [each for each in new.versions if old[0].versions.get(each) != new.versions[each]]
        versions = ", ".join(f"{each} {old[0].versions.get(each, 'none')} → {new.versions[each]}" for each in packages)
        for r in results[name]:
            before = was.get((r.case, r.dtype))
            if before is not None and before != _short(r):
                changes.append(Change(name, versions, r.case, before, _short(r)))
    return tuple(changes), has_before


def _short(result: Result) -> str:
    if result.outcome is not Outcome.FAILED:
        return result.outcome.value
    failure = result.failure or Failure.VALUE
    return f"failed: {result.error_pattern or divergence.INSTEAD.get(failure, failure.value)}"


def without_choices(known: Mapping[str, Entry], model: Model) -> Model:
    """The same results without failures that are a choice; badges are made from these.

    Parameters
    ----------
    known
        Entries of the manifest by their names.
    model
        The results.

    Returns
    -------
    Model
        A new model; the given one is unchanged.
    """
    kept = tuple(r for r in model.records.results if not (r.failure and by_design(known[r.implementation], r)))
    return replace(model, records=replace(model.records, results=kept))
