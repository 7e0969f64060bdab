"""A run of the bench that only times, for tests that look at no roofline and no overhead."""

from __future__ import annotations

from types import SimpleNamespace

#: The name of the function below, for ``impls.tests.commands.run``.
TIMES_ALONE = f"{__name__}:times_alone"


def times_alone() -> None:
    """Leave out the rooflines and the overhead, which take seconds of every run."""
    from attention_conformance.bench.output import extra_metrics

    vars(extra_metrics).update(rooflines=lambda *_: [], overhead=SimpleNamespace(run=lambda *_: {}))
