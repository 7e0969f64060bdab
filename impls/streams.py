"""(SDPA-45) One call in a held stream, with inputs that arrive late, and its results as the stream sees them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attention_conformance.impls.backend import backend
from attention_conformance.impls.calls import Request, Status, arguments, collect, prepared, text
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.loading import load_function

#: Frameworks whose users choose the stream that a call is made in, and the modules that hold one.
HELD_BY = {Framework.TORCH: "attention_conformance.impls.torch.streams"}

#: Seconds for which the stream is held; the next value is tried where the call was not submitted in time.  The call was
#: made twice before, so nothing is compiled any more.
HOLDS = (0.01, 0.1, 0.5)


@dataclass(frozen=True)
class InStream:
    """A call that was made plainly and in a held stream.

    ``plain`` has the results of the plain call, ``in_order`` those of the other as the stream saw them after it,
    ``later`` those once the device is idle.  ``held`` is whether the call was submitted while the stream was held; if
    not, the call waits for the stream itself.
    """

    status: Status
    text: str = ""
    plain: dict[str, np.ndarray] = field(default_factory=dict)
    in_order: dict[str, np.ndarray] = field(default_factory=dict)
    later: dict[str, np.ndarray] = field(default_factory=dict)
    held: bool = False


def in_stream(implementation: Implementation, request: Request) -> InStream:
    """Call in a stream that is held, with inputs that are zeros until the stream reaches their copies.

    Parameters
    ----------
    implementation, request
        An implementation of a framework in HELD_BY, and its arguments, on "cuda".

    Returns
    -------
    InStream
        Results, or the exception of a call.
    """
    arrays, held = backend(implementation.framework), importlib.import_module(HELD_BY[implementation.framework])
    try:
        _, native, specification = arguments(implementation, request)
        run = prepared(implementation, load_function(implementation), specification)

        def results(returned: Any) -> dict[str, np.ndarray]:
            found = collect(returned, specification, implementation.layout, arrays, implementation.layout_of_past)
            return {name: np.array(array) for name, array in found.items()}

        results(run(**native))  # compiles
        plain = results(run(**native))
        for seconds in HOLDS:
            made = held.held_call(run, native, seconds, request.device)
            if made is None:
                return InStream("unsupported", f"this version of {implementation.framework} cannot hold a stream")
            returned, copies, in_time = made
            if in_time:
                break
        return InStream("returned", "", plain, results(copies), results(returned), in_time)
    except NotImplementedError as error:
        return InStream("unsupported", text(error))
    except Exception as error:
        return InStream("raised", text(error))
