"""Properties of latent attention, each with its clause.

Where projections are computed before the call, their factors are so few and so small that the sums have no more than
the 8 significant bits of bfloat16: multiples of 1/4 of at most 2, over at most 24 columns of weights −1, 0 and 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from attention_conformance.conformance.properties.form_property import follows
from attention_conformance.conformance.properties.properties import AS_DRAWN
from attention_conformance.conformance.properties.transform import on_grid
from attention_conformance.conformance.properties.trial import Trial, constant, merged

#: Queries and latents become multiples of STEP, of at most LARGEST.
STEP, LARGEST = 0.25, 2.0

#: Description of the problem where a projection must be exact.
ROUNDED = "the problem as drawn, rounded so that projections are exact"


@follows("latent", "MLA-2")
def agrees_with_reference(trial: Trial) -> None:
    """The results with random options are those of the reference, within the bound of the declared profile."""
    for name, result in trial.call(trial.inputs, AS_DRAWN).results.items():
        trial.equal(name, result, constant(result.exact))


@follows("latent", "MLA-2")
def head_alone(trial: Trial) -> None:
    """A head of a batch alone, with its own projections, is that head among the others."""
    x = trial.inputs
    hypothesis.assume(x.q.shape[:2] != (1, 1))
    b, h = (trial.draw(st.integers(0, n - 1)) for n in x.q.shape[:2])
    one = trial.call(_head(_batch(x, b), h), f"its head {h} of batch {b} alone")
    two = trial.call(x, AS_DRAWN)
    for name in one.results:
        trial.equal(name, two[name][b : b + 1, h : h + 1], one[name])


@follows("latent", "MLA-2")
def projected_before(trial: Trial) -> None:
    """A head whose keys and values are projected before the call gives the same as from the latents."""
    x = _exact(trial.inputs)
    h = trial.draw(st.integers(0, x.q.shape[1] - 1)) if not trial.few else x.q.shape[1] - 1
    d, dv = x.w_uk.shape[2], x.w_uv.shape[2]
    both = np.concatenate([_product(x.latents, w[h]) for w in (x.w_uk, x.w_uv)], axis=2)
    own = np.eye(d + dv, dtype=x.q.dtype)[None]
    alone = replace(_head(x, h), latents=both, w_uk=own[:, :, :d], w_uv=own[:, :, d:])
    one = trial.call(alone, f"keys and values of head {h} in the place of latents, which nothing projects")
    two = trial.call(x, ROUNDED)
    for name in one.results:
        trial.equal(name, two[name][:, h : h + 1], one[name])


@follows("latent", "MLA-3", needs="scale")
def absorbed_before(trial: Trial) -> None:
    """Queries multiplied by w_uk before the call, with the original scale, give the same."""
    x = _exact(_default_scale(trial.inputs))
    heads, rank = x.w_uk.shape[:2]
    own = np.broadcast_to(np.eye(rank, dtype=x.q.dtype), (heads, rank, rank)).copy()
    absorbed = replace(x, q=_product(x.q, x.w_uk.swapaxes(1, 2)), w_uk=own)
    one = trial.call(_scaled(absorbed, _scale(x)), "its queries absorbed before the call")
    trial.same(trial.call(x, ROUNDED), one)


@follows("latent", "MLA-2", needs="scale")
def rotary_part_as_columns(trial: Trial) -> None:
    """The rotary key as further columns of the latents, copied into the keys of all heads, gives the same."""
    x = _default_scale(trial.inputs)
    heads, rank, d = x.w_uk.shape
    dr = x.k_rope.shape[2]
    w_uk = np.zeros((heads, rank + dr, d + dr), x.q.dtype)
    w_uk[:, :rank, :d], w_uk[:, rank:, d:] = x.w_uk, np.eye(dr)
    columns = replace(
        x,
        q=np.concatenate([x.q, x.q_rope], axis=3),
        q_rope=np.zeros_like(x.q_rope),
        latents=np.concatenate([x.latents, x.k_rope], axis=2),
        w_uk=w_uk,
        w_uv=np.concatenate([x.w_uv, np.zeros((heads, dr, x.w_uv.shape[2]), x.q.dtype)], axis=1),
    )
    one = trial.call(_scaled(columns, _scale(x)), "its rotary key as columns of the latents")
    trial.same(trial.call(x, "the problem with the default scale"), one)


@follows("latent", "MLA-4", needs="scale")
def queries_doubled(trial: Trial) -> None:
    """Queries twice as large, with half the scale, give the same."""
    x = _default_scale(trial.inputs)
    one = trial.call(x, "the problem with the default scale")
    twice = replace(x, q=2 * x.q, q_rope=2 * x.q_rope)
    trial.same(trial.call(_scaled(twice, _scale(x) / 2), "its queries doubled, and half the scale"), one)


@follows("latent", "MLA-2", is_causal="", kv_lengths="")
def tokens_permuted(trial: Trial) -> None:
    """The tokens in another order, latents with their rotary keys, give the same."""
    x = trial.inputs
    order = trial.draw(st.permutations(range(x.latents.shape[1])))
    one = trial.call(x, AS_DRAWN)
    trial.same(trial.call(_tokens(x, order), f"its tokens in the order {order}"), one)


@follows("latent", "MLA-5", needs="return_lse", is_causal="causal_offset", kv_lengths="")
def tokens_split(trial: Trial) -> None:
    """Two parts of the tokens, merged by their lse, give what all tokens give."""
    x = trial.inputs
    total = x.latents.shape[1]
    hypothesis.assume(total > 1)
    first = trial.draw(st.integers(1, total - 1)) if not trial.few else total // 2
    left = trial.call(_tokens(x, range(first)), f"its first {first} tokens")
    rest = _tokens(x, range(first, total))
    if x.keywords.get("is_causal"):
        rest = replace(rest, keywords=x.keywords | {"causal_offset": x.keywords.get("causal_offset", 0) - first})
    right = trial.call(rest, "its other tokens")
    whole = trial.call(x, AS_DRAWN)
    output, lse = merged(left["output"], left["lse"], right["output"], right["lse"])
    trial.equal("output", whole["output"], output)
    trial.equal("lse", whole["lse"], lse)


# Parts of inputs, and exact inputs.


def _batch(x: Any, b: int) -> Any:
    taken = {name: getattr(x, name)[b : b + 1] for name in ("q", "q_rope", "latents", "k_rope")}
    given = dict(x.keywords)
    given |= {n: given[n][b : b + 1] for n in ("kv_lengths", "causal_offset") if np.ndim(given.get(n, 0))}
    return replace(x, **taken, keywords=given)


def _head(x: Any, h: int) -> Any:
    one = slice(h, h + 1)
    return replace(x, q=x.q[:, one], q_rope=x.q_rope[:, one], w_uk=x.w_uk[one], w_uv=x.w_uv[one])


def _tokens(x: Any, index: Any) -> Any:
    return replace(x, latents=np.take(x.latents, index, axis=1), k_rope=np.take(x.k_rope, index, axis=1))


def _scale(x: Any) -> float:
    """(MLA-4) The default scale."""
    return float(1 / np.sqrt(x.q.shape[3] + x.q_rope.shape[3]))


def _scaled(x: Any, scale: float) -> Any:
    return replace(x, keywords=x.keywords | {"scale": scale})


def _default_scale(x: Any) -> Any:
    return replace(x, keywords={name: value for name, value in x.keywords.items() if name != "scale"})


def _exact(x: Any) -> Any:
    """The problem with projections whose factors have few bits."""
    q, latents = (on_grid(a.astype(np.float64), STEP, LARGEST).astype(a.dtype) for a in (x.q, x.latents))
    size = np.sqrt(x.w_uk.shape[1])
    w_uk, w_uv = (on_grid(size * a.astype(np.float64), 1.0, 1.0).astype(a.dtype) for a in (x.w_uk, x.w_uv))
    return replace(x, q=q, latents=latents, w_uk=w_uk, w_uv=w_uv)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product in the dtype of its factors, without rounding for factors from ``_exact``."""
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)
