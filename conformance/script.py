"""The command ``script``: run one case of one implementation, and print the standalone script of its failure."""

from __future__ import annotations

import argparse
import contextlib

from attention_conformance.conformance.cases import AnyCase, asked_cases, every_case, kernel_cases, serving_cases
from attention_conformance.conformance.cases.fit import dtypes_for, fit
from attention_conformance.conformance.diagnosis.explain import Simplifier
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.repro.checks import wrong_elements
from attention_conformance.conformance.repro.compose import text
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.targets import DEVICES, Selection, Target, choose
from attention_conformance.impls.contract import DTYPES, ImplementationError, InputError
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.process import limits
from attention_conformance.impls.process.pool import Pool

#: Seconds for the case, compilation included; as pytest's ``--case-timeout``.
TIMEOUT = 300.0

#: Exit status where the case does not fail, so that there is nothing to show.
NO_FAILURE = 1


class ScriptError(InputError):
    """A choice for which no script can be made; the text is one sentence."""


def run_script(impl: str, case: str, dtype: str | None, device: str) -> str | tuple[str, int]:
    """The script of a failure, or a sentence that there is none.  The ledger is ignored: a deviation is a failure.

    Raises ScriptError or ImplementationError for a choice that cannot be run.
    """
    chosen = asked_cases().get(case) or kernel_cases().get(case) or serving_cases().get(case)
    if chosen is None:
        raise ScriptError(f"--case {case}: no such case{nearest(case, every_case())}")
    pool = Pool(in_process=False, memory=limits.default())
    try:
        selection = choose([impl], [device], [dtype] if dtype else [], pool, probe=True)
        target = _target(impl, selection, chosen, dtype, device)
        dtype, chosen = target.dtype, fit(chosen, target.implementation.envelope)
        keywords, versions = selection.keywords[target.implementation.name], selection.versions
        judged = judge_case(target, chosen, pool, keywords, Ledger(), versions, TIMEOUT)
        with contextlib.suppress(NotImplementedError, ValueError):  # reported below
            judged, chosen = Simplifier(pool, selection.keywords, versions, TIMEOUT)(target, chosen, judged)
    finally:
        pool.close()
    result = judged.result
    if result.failure is None:
        why = f": {result.reason}" if result.reason else ""
        return f"# {impl}, case {case} in {dtype}: {result.outcome.value}{why}; there is no failure to show", NO_FAILURE
    try:
        return text(result, target, chosen, wrong_elements(judged, chosen, target), selection.versions).rstrip("\n")
    except (NotImplementedError, ValueError) as error:
        raise ScriptError(f"{impl}, case {case}: the call cannot be written as a script ({error})") from None


def _target(impl: str, selection: Selection, case: AnyCase, dtype: str | None, device: str) -> Target:
    """The one target to run, in float32 where no dtype is given and the case has it.  Raises ScriptError."""
    if selection.not_installed:
        name, packages = next(iter(selection.not_installed.items()))
        raise ImplementationError(f"{name} needs {', '.join(packages)}, not installed")
    if not selection.targets:
        raise ScriptError(f"--impl {impl}: does not run on {device}" + (f" in {dtype}" if dtype else ""))
    implementations = {target.implementation for target in selection.targets}
    if len(implementations) > 1:
        raise ScriptError(f"--impl {impl}: names {len(implementations)} implementations, a script needs exactly one")
    (implementation,) = implementations
    if implementation.operator != case.operator:
        raise ScriptError(f"--impl {impl} is of {implementation.operator}, case {case.name} of {case.operator}")
    asked = dtypes_for(case, implementation.dtypes)
    found = {t.dtype: t for t in selection.targets if t.dtype in asked}
    if not found:
        where = f"--dtype {dtype}" if dtype else f"--impl {impl}"
        raise ScriptError(f"{where}: case {case.name} exists only in {', '.join(asked or case.dtypes)}")
    return found.get("float32") or next(iter(found.values()))


def script_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``script``."""
    parser.add_argument("--impl", required=True, metavar="NAME", help="an implementation, as for pytest conformance")
    parser.add_argument("--case", required=True, metavar="CASE", help="one case, by its name")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32 where the case has it")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    parser.epilog = "Ends with 0 if it printed a script, 1 if the case does not fail, 2 if it cannot be run."
