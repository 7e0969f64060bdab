"""Parallel judging: the processes of different libraries run at the same time, while pytest reports in its own order.

Compilers and exporters keep one core busy, so two libraries at a time are twice as fast on two cores.  The cases of
one process run one after the other, in order.  Quick cases come first, so that there is a first table soon; of the rest
the slowest library begins first, as started last it would keep one core busy while the others have nothing to do.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from attention_conformance.conformance.targets import QUICK
from attention_conformance.impls.process.threads import usable_cores

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

#: Most processes that work at the same time by default: the built-ins have four libraries.
MOST = 4


def default_parallel() -> int:
    """One process per core that this one may use, up to MOST."""
    return min(usable_cores(), MOST)


class Parallel(Generic[Key, Value]):
    """Computes values by key in groups: up to ``parallel`` groups at a time, the keys of a group in order.

    ``seconds`` estimates what a key takes: keys below QUICK come first in a group, and no other key begins while one of
    them can.  Nothing runs before the first ``get``.  With ``parallel`` 0 ``get`` computes, in the thread that calls
    it.
    """

    def __init__(
        self,
        keys: Iterable[Key],
        group: Callable[[Key], Hashable],
        compute: Callable[[Key], Value],
        parallel: int,
        seconds: Callable[[Key], float] = lambda key: 0.0,
    ) -> None:
        parts: dict[tuple[bool, Hashable], list[Key]] = defaultdict(list)
        for key in keys:
            parts[seconds(key) >= QUICK, group(key)].append(key)
        #: Group and keys of each part, in the order in which they begin.
        self._parts = [
            (name, some)
            for (slow, name), some in sorted(
                parts.items(), key=lambda part: (part[0][0], -sum(map(seconds, part[1])) if part[0][0] else 0.0)
            )
        ]
        self._futures: dict[Key, Future[Value]] = {key: Future() for some in parts.values() for key in some}
        self._compute = compute
        self._parallel = parallel
        self._executor: ThreadPoolExecutor | None = None
        self._busy: set[Hashable] = set()
        self._changed = threading.Condition()
        self._stopped = False

    def get(self, key: Key) -> Value:
        """The value of a key, once it is computed; raises what computing it raised."""
        if not self._parallel:
            return self._compute(key)
        self._start()
        return self._futures[key].result()

    def wait(self, key: Key, timeout: float) -> bool:
        """Whether a key is computed within ``timeout`` seconds; True if ``get`` computes."""
        if not self._parallel:
            return True
        self._start()
        return bool(wait([self._futures[key]], timeout).done)

    def _start(self) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._parallel)
            for _ in range(self._parallel):
                self._executor.submit(self._work)

    def computed(self) -> dict[Key, Value]:
        """Values computed so far, in no particular order; none if ``get`` computes."""
        done = {key: future for key, future in self._futures.items() if future.done()}
        return {key: future.result() for key, future in done.items() if future.exception() is None}

    def stop(self) -> None:
        """Begin nothing more, and do not wait for what is running."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _work(self) -> None:
        while (part := self._next()) is not None:
            name, keys = part
            for key in keys:
                if self._stopped:
                    return
                try:
                    self._futures[key].set_result(self._compute(key))
                except BaseException as error:
                    self._futures[key].set_exception(error)
            with self._changed:
                self._busy.discard(name)
                self._changed.notify_all()

    def _next(self) -> tuple[Hashable, list[Key]] | None:
        """Wait for the first part whose group is idle; None if nothing is left to begin."""
        with self._changed:
            while self._parts and not self._stopped:
                for place, (name, _) in enumerate(self._parts):
                    if name not in self._busy:
                        self._busy.add(name)
                        return self._parts.pop(place)
                self._changed.wait()
        return None
