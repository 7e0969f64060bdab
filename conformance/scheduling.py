"""How pytest-xdist shares the tests out: imported only where it is used."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

from conformance.distributed import scope


class ByScope(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Tests of one scope stay together; the largest scopes are begun first."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)
