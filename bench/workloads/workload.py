"""Workloads: the shapes that are timed, each with a terse stable name such as ``prefill-b1h8d64s1024-causal``.

Grammar of a name, whose parts are in this order, and are given exactly where they change its meaning:

    KIND-b<B>h<H>[g<Hkv>]d<D>[v<Dv>]s<Sq>[k<N>][-causal][-w<LEFT>][-cap<C>][-bias][-pad][-p<P>][-chat|-code][-mixed]
        [-grad]

* ``prefill``: sdpa with Sq = Sk.  ``cross``: Sk = N, different from Sq.  ``decode``: Sq new tokens after N past keys,
  always causal.  ``mha`` and ``sublayer``: the layers, self-attention with E = H · D, every projection and its bias.
  ``merge``: N partial results of S rows each, of width D.
* ``varlen``: self-attention of B packed sequences; the longest has Sq tokens.  ``paged``: B sequences with Sq new
  tokens each after up to N earlier ones, always causal, whose keys are in pages in any order.  Lengths go from the
  longest down as with ``-pad``, unless a mix is given.
* ``blocks``: self-attention in blocks of P rows and keys, bidirectional, in BigBird's pattern (PATTERN).
* ``g`` only where Hkv ≠ H (it divides H), ``v`` only where Dv ≠ D.  Numbers have no leading zeros.
* ``-w4096``: a window of 4096 keys to the left, causal, so that ``-causal`` is left out.  ``-cap50``: softcap.
  ``-bias``: an additive bias (1, H, Sq, Sk).  ``-pad``: ``kv_lengths`` that differ (below); B is more than 1.
  ``-grad``: the gradients, operator sdpa_grad or mha_grad.
* ``-p128``: pages of 128 keys, or blocks of 128 rows and keys, instead of those in PAGES.  ``-chat``, ``-code``:
  lengths in the proportions of the prompts of a published trace (MIXES).  ``-mixed``: the first sequence has Sq new
  tokens, a piece of its prompt, and the others one.
* KINDS has the parts of each kind; the dtype is not part of a name.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from attention_conformance.impls.contract import InputError
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.operators import OPERATORS


class WorkloadError(InputError, ValueError):
    """A workload that cannot be timed under this name; the text is one sentence for the user."""


@dataclass(frozen=True)
class Kind:
    """Kind of workload: its operators, and the optional parts that its names may have."""

    operator: str
    #: The operator of its gradients, "" for none.
    gradient: str
    parts: frozenset[str]


def _kind(operator: str, gradient: str, parts: str) -> Kind:
    return Kind(operator, gradient, frozenset(parts.split()))


#: Keys in a page, vLLM's default, and rows and keys in a block, BigBird's.
PAGES = {"paged": 16, "blocks": 64}

#: Blocks of keys that the rows of a block attend to in BigBird's pattern (Zaheer et al. 2020, §2): their own and that
#: many on either side, that many at each end of the sequence, whose rows attend to everything, and random ones.
PATTERN = {"beside": 1, "ends": 1, "random": 3}

#: Prompts, in tokens, of two services in the Azure LLM inference trace 2023 (Patel et al. 2024, Splitwise; CC-BY,
#: https://github.com/Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_conv.csv with 19,366 requests and
#: _code.csv with 8,819): the prompts at (i + ½)/16 of each, sorted.
MIXES = {
    "chat": (165, 206, 374, 391, 401, 412, 818, 1001, 1037, 1067, 1100, 1147, 1312, 1770, 3018, 4089),
    "code": (51, 137, 245, 462, 700, 915, 1093, 1342, 1605, 1885, 2195, 2539, 2982, 3776, 5511, 7435),
}

#: A step that visits all sixteenths, so that neighbours in a batch have unlike lengths, as arriving requests do.
_STRIDE = 7

KINDS = {
    "prefill": _kind("sdpa", "sdpa_grad", "g v causal w cap bias pad grad"),
    "cross": _kind("sdpa", "sdpa_grad", "g v k cap bias pad grad"),
    "decode": _kind("sdpa", "", "g v k w cap"),
    "mha": _kind("mha", "mha_grad", "causal bias pad grad"),
    "sublayer": _kind("sublayer", "", "causal bias pad"),
    "merge": _kind("merge", "", "k"),
    "varlen": _kind("varlen", "", "g v causal w cap chat code"),
    "paged": _kind("paged", "", "g v k w cap p chat code mixed"),
    "blocks": _kind("sdpa", "", "g v p"),
}

#: Kinds whose sequences are packed one after the other, and kinds in which new tokens follow earlier ones.
PACKED, AFTER_PAST = ("varlen", "paged"), ("decode", "paged")

#: The sizes as error messages give them, and patterns that read them.
SIZES = "b<B>h<H>[g<Hkv>]d<D>[v<Dv>]s<Sq>[k<N>]"
_NUMBER = r"([1-9]\d*)"
_SIZES = re.compile(f"b{_NUMBER}h{_NUMBER}(?:g{_NUMBER})?d{_NUMBER}(?:v{_NUMBER})?s{_NUMBER}(?:k{_NUMBER})?")

#: Suffixes in their order, with the pattern that reads each.
SUFFIXES = {
    "causal": "causal",
    "w": f"w{_NUMBER}",
    "cap": f"cap{_NUMBER}",
    "bias": "bias",
    "pad": "pad",
    "p": f"p{_NUMBER}",
    **{mix: mix for mix in MIXES},
    "mixed": "mixed",
    "grad": "grad",
}


#: Suffixes as users write them.
_SUFFIXES = [{"w": "w4096", "cap": "cap50", "p": "p128"}.get(name, name) for name in SUFFIXES]


@dataclass(frozen=True)
class Workload:
    """One call to be timed; equal workloads have equal names.

    ``kv_heads`` and ``value_width`` become ``heads`` and ``width`` where they are 0.  ``other`` is the number of keys
    of ``cross``, of past keys of ``decode`` and ``paged``, and of parts of ``merge``; ``page`` the keys of a page
    or block.
    Raises WorkloadError for a call that has no name.
    """

    batch: int
    heads: int
    width: int
    length: int
    is_causal: bool = False
    kind: str = "prefill"
    kv_heads: int = 0
    value_width: int = 0
    other: int = 0
    window: int | None = None
    softcap: int | None = None
    has_bias: bool = False
    is_padded: bool = False
    is_gradient: bool = False
    page: int = 0
    mix: str = ""
    is_mixed: bool = False

    def __post_init__(self) -> None:
        """Fill in what follows from the rest, so that equal calls are equal workloads; refuse calls without a name."""
        implied = {
            "kv_heads": self.kv_heads or self.heads,
            "value_width": self.value_width or self.width,
            "is_causal": self.is_causal or self.window is not None or self.kind in AFTER_PAST,
            "page": self.page or PAGES.get(self.kind, 0),
        }
        for name, value in implied.items():
            object.__setattr__(self, name, value)
        _check(self)

    @property
    def operator(self) -> str:
        """The operator whose implementations run it."""
        kind = KINDS[self.kind]
        return kind.gradient if self.is_gradient else kind.operator

    @property
    def family(self) -> str:
        """The name with its length left open: workloads of one family differ only in the length."""
        sizes = f"b{self.batch}h{self.heads}"
        sizes += f"g{self.kv_heads}" if self.kv_heads != self.heads else ""
        sizes += f"d{self.width}"
        sizes += f"v{self.value_width}" if self.value_width != self.width else ""
        if self.kind in AFTER_PAST:
            sizes += f"s{self.length}k*"
        else:
            sizes += f"s*k{self.other}" if self.other else "s*"
        return "-".join([self.kind, sizes, *self.suffixes])

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the name, in their order."""
        given = {
            "causal": self.is_causal and self.window is None and self.kind not in AFTER_PAST,
            f"w{self.window}": self.window is not None,
            f"cap{self.softcap}": self.softcap is not None,
            "bias": self.has_bias,
            "pad": self.is_padded,
            f"p{self.page}": self.page != PAGES.get(self.kind, 0),
            self.mix: bool(self.mix),
            "mixed": self.is_mixed,
            "grad": self.is_gradient,
        }
        return tuple(text for text, said in given.items() if said)

    @property
    def sweep(self) -> int:
        """The length that the family leaves open: S, or the past keys for ``decode`` and ``paged``."""
        return self.other if self.kind in AFTER_PAST else self.length

    @property
    def name(self) -> str:
        """The name that ``parse`` reads back."""
        return self.family.replace("*", str(self.sweep))

    @property
    def past(self) -> int:
        """Keys before the first query row of the longest sequence."""
        return self.other if self.kind in AFTER_PAST else 0

    @property
    def keys(self) -> int:
        """Sk: all keys of a sequence, past ones and new ones; the parts for ``merge``."""
        return self.other if self.kind in ("cross", "merge") else self.past + self.length

    @property
    def kv_lengths(self) -> tuple[int, ...]:
        """Valid keys of each sequence: with ``-pad`` from Sk down in equal steps towards Sk / 2, 3/4 of it on average.

        Sequence b has Sk · (2B − b) / 2B keys, rounded up.
        """
        if not self.is_padded:
            return (self.keys,) * self.batch
        return _descending(self.keys, self.batch)

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """Query rows and valid keys of each sequence; where it is causal, the last row sees the last key of all.

        The mix gives the lengths of the packed kinds; the others have Sq rows in every sequence, and padding.
        """
        if self.kind not in PACKED:
            return tuple((self.length, keys) for keys in self.kv_lengths)
        lengths = _descending(self.sweep, self.batch)
        if self.mix:
            prompts = MIXES[self.mix]
            chosen = [prompts[(2 * n + 1) * len(prompts) // (2 * self.batch)] for n in range(self.batch)]
            lengths = tuple(-(-self.sweep * length // max(chosen)) for length in chosen)
            if math.gcd(_STRIDE, self.batch) == 1:
                lengths = tuple(lengths[_STRIDE * n % self.batch] for n in range(self.batch))
        if self.kind == "varlen":
            return tuple((length, length) for length in lengths)
        new = [self.length if n == 0 or not self.is_mixed else 1 for n in range(self.batch)]
        return tuple((rows, past + rows) for rows, past in zip(new, lengths, strict=True))

    @property
    def tokens(self) -> int:
        """Query rows of a call: B · Sq, or the sum over packed sequences.  Padding hides keys; no row is left out."""
        return sum(rows for rows, _ in self.sequences)


def _descending(longest: int, batch: int) -> tuple[int, ...]:
    """Lengths from the longest down in equal steps towards half of it, rounded up."""
    return tuple(-(-longest * (2 * batch - b) // (2 * batch)) for b in range(batch))


def _check(w: Workload) -> None:
    """Refuse a call that has no name, or more than one."""
    if w.kind not in KINDS:
        raise WorkloadError(f"{w.kind!r} is not a kind of workload{nearest(w.kind, KINDS)}")
    if w.mix not in ("", *MIXES):
        raise WorkloadError(f"{w.mix!r} is not a mix{nearest(w.mix, MIXES)}")
    given = {re.sub(r"\d", "", suffix) for suffix in w.suffixes}
    given |= {"g"} if w.kv_heads != w.heads else set()
    given |= {"v"} if w.value_width != w.width else set()
    given |= {"k"} if w.other else set()
    surplus = sorted(given - KINDS[w.kind].parts)
    if surplus:
        raise WorkloadError(f"{w.kind} has no part {surplus[0]!r}; it may have {', '.join(_parts(w.kind))}")
    if "k" in KINDS[w.kind].parts and not w.other:
        raise WorkloadError(f"{w.kind} needs a number of keys, as in {w.kind}-b1h8d64s{w.length}k4096")
    sizes = (w.batch, w.heads, w.width, w.length, w.kv_heads, w.value_width, w.other or 1, w.page or 1)
    if min(*sizes, *(number for number in (w.window, w.softcap) if number is not None)) < 1:
        raise WorkloadError("sizes are at least 1")
    if w.heads % w.kv_heads:
        raise WorkloadError(f"{w.kv_heads} key heads do not divide {w.heads} query heads")
    if w.kind == "cross" and w.other == w.length:
        raise WorkloadError(f"cross with {w.length} rows and keys is a prefill")
    if w.batch == 1 and (surely := [name for name in ("pad", *MIXES, "mixed") if name in given]):
        raise WorkloadError(f"{surely[0]} needs more than one sequence, as their lengths differ")
    if w.is_mixed and w.length == 1:
        raise WorkloadError("mixed needs more than one new token, as the other sequences have one")
    if w.is_gradient and w.operator not in OPERATORS:
        raise WorkloadError(f"there is no operator {w.operator}")


def _parts(kind: str) -> list[str]:
    """The optional parts of a kind, in the order of a name."""
    return [part for part in ("g", "v", "k", *SUFFIXES) if part in KINDS[kind].parts]


def parse(name: str) -> Workload:
    """The workload of a name.  Raises WorkloadError, which says what is wrong, if it does not follow the grammar."""

    def refuse(why: str) -> NoReturn:
        raise WorkloadError(f"no workload {name!r}: {why}")

    kind, _, rest = name.partition("-")
    if kind not in KINDS:
        likely = nearest(kind, KINDS).replace("?", f"-{rest}?") if rest else nearest(kind, KINDS)
        refuse(f"{kind!r} is not a kind{likely}")
    sizes, *suffixes = rest.split("-")
    found = _SIZES.fullmatch(sizes)
    if found is None:
        refuse(f"sizes are {SIZES}, numbers without leading zeros, got {sizes!r}")
    batch, heads, kv_heads, width, value_width, length, other = (int(text or 0) for text in found.groups())
    options: dict[str, int] = {}
    for suffix in suffixes:
        read = {key: re.fullmatch(pattern, suffix) for key, pattern in SUFFIXES.items()}
        matching = [(key, match) for key, match in read.items() if match]
        if not matching:
            refuse(f"{suffix!r} is not a suffix{nearest(suffix, _SUFFIXES)}")
        key, match = matching[0]
        options[key] = int(match[1]) if match.groups() else 1
    try:
        workload = Workload(
            batch,
            heads,
            width,
            length,
            is_causal="causal" in options,
            kind=kind,
            kv_heads=kv_heads,
            value_width=value_width,
            other=other,
            window=options.get("w"),
            softcap=options.get("cap"),
            has_bias="bias" in options,
            is_padded="pad" in options,
            is_gradient="grad" in options,
            page=options.get("p", 0),
            mix=next((mix for mix in MIXES if mix in options), ""),
            is_mixed="mixed" in options,
        )
    except WorkloadError as error:
        refuse(str(error))
    if workload.name != name:
        refuse(f"it is written {workload.name}")
    return workload
