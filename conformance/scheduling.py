"""How pytest-xdist shares the tests out: imported only where it is used."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

from conformance.distributed import scope

#: Scopes that take longer than others of as many tests, the longest first: what is compiled, exported or traced for
#: each case, and files whose few tests judge very often or start whole runs.  Begun last, one of them would keep one
#: process busy while the others have nothing left to do.
LONG = (
    "conformance/tests/test_kills.py",
    "conformance/tests/test_diagnosis.py",
    "conformance/tests/test_script_builtin.py",
    "torch-flex",
    "torch-compile",
    "bench/tests/test_campaign_command.py",
    "conformance/tests/test_failures_page.py",
    "conformance/tests/test_ledger_page.py",
    "jax-jit",
    "jax-tiled",
    "torch-compile-gradients",
    "jax-layer",
    "jax-layer-gradients",
)


class ByScope(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Tests of one scope stay together; the longest scopes are begun first, and then the largest."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=self._place), last=False)
        super()._assign_work_unit(node)

    def _place(self, name: str) -> tuple[int, int]:
        return LONG.index(name) if name in LONG else len(LONG), -len(self.workqueue[name])
