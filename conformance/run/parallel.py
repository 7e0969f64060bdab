"""Parallel judging: the processes of different libraries run at the same time, while pytest reports in its own order.

Compilers and exporters keep one core busy, so two libraries at a time are twice as fast on two cores.  The cases of
one process run one after the other, in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from attention_conformance.impls.process.threads import usable_cores

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

#: More libraries than this do not take part in a run.
MOST = 4


def default_parallel() -> int:
    """One process per core that this one may use, up to MOST."""
    return min(usable_cores(), MOST)


class Parallel(Generic[Key, Value]):
    """Computes values by key in groups: up to ``parallel`` groups at a time, the keys of a group in order.

    Nothing runs before the first ``get``.  With ``parallel`` 0 ``get`` computes, in the
    thread that calls it.
    """

    def __init__(
        self, keys: Iterable[Key], group: Callable[[Key], Hashable], compute: Callable[[Key], Value], parallel: int
    ) -> None:
        self._groups: dict[Hashable, list[Key]] = defaultdict(list)
        for key in keys:
            self._groups[group(key)].append(key)
        self._futures: dict[Key, Future[Value]] = {key: Future() for keys in self._groups.values() for key in keys}
        self._compute = compute
        self._parallel = parallel
        self._executor: ThreadPoolExecutor | None = None
        self._stopped = False

    def get(self, key: Key) -> Value:
        """The value of a key, once it is computed; raises what computing it raised."""
        if not self._parallel:
            return self._compute(key)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._parallel)
            for keys in self._groups.values():
                self._executor.submit(self._run, keys)
        return self._futures[key].result()

    def stop(self) -> None:
        """Begin nothing more; what runs now is not waited for."""
        self._stopped = True
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _run(self, keys: list[Key]) -> None:
        for key in keys:
            if self._stopped:
                return
            try:
                self._futures[key].set_result(self._compute(key))
            except BaseException as error:
                self._futures[key].set_exception(error)
