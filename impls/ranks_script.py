"""Scripts of calls over several ranks: they share the inputs out, call the function in each rank, and join the results.

A script for torch starts its ranks itself, by ``torch.distributed.run`` on the loopback device; ``torchrun`` can start
them too.  A script for JAX has virtual devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from attention_conformance.impls.contract import Call, Framework, Implementation
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.impls.script import INDENT, Snippet
from attention_conformance.impls.sharding import HEADS, KEYS, PAST, SCORES, Distribution

#: The places of each rank in a sequence, or of the query heads, by the name of a sharding.
_PLACES = {
    "contiguous": """\
    size = -(-length // ranks)
    return [list(range(length))[n * size : (n + 1) * size] for n in range(ranks)]""",
    "striped": """\
    return [list(range(length))[n::ranks] for n in range(ranks)]""",
    "zigzag": """\
    size = -(-length // (2 * ranks))
    parts = [list(range(length))[n * size : (n + 1) * size] for n in range(2 * ranks)]
    return [parts[n] + parts[-1 - n] for n in range(ranks)]""",
}

_TORCH = """
if "RANK" not in os.environ:  # start the ranks; each runs this script
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform.startswith("linux") else "lo0"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    os.execv(sys.executable, [*launcher, "--nproc-per-node={ranks}", __file__])

dist.init_process_group("gloo")
atexit.register(dist.destroy_process_group)  # its threads end before the process does
atexit.register(gc.collect)  # runs first: a graph of gradients keeps the process group
rank, ranks = dist.get_rank(), dist.get_world_size()
if rank:  # all ranks have the whole result, and the first one prints it
    sys.stdout = open(os.devnull, "w")

"""

#: Functions of a script for torch, each left out where nothing calls it.
_HELPERS = {
    "Whole.apply": """
class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, array):
        return array.view_as(array)

    @staticmethod
    def backward(ctx, grad):  # what all ranks were given has the sum of their gradients
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad
""",
    "taken(": """
def taken(array, axis, parts):
    return array.index_select(axis, torch.tensor(parts[rank], dtype=torch.int64))
""",
    "joined(": """
def joined(own, axis, parts):
    pieces = [None] * ranks
    dist.all_gather_object(pieces, own.detach())
    pieces[rank] = own
    order = torch.tensor([place for part in parts for place in part]).argsort()
    return torch.cat(pieces, axis).index_select(axis, order)
""",
    "same(": """
def same(own):
    pieces = [None] * ranks
    dist.all_gather_object(pieces, own.detach())
    differ = [n for n, piece in enumerate(pieces) if not piece.equal(pieces[0])]
    if differ:
        raise RuntimeError(f"rank {differ[0]} disagrees with rank 0")
    return own
""",
}

_JAX = """
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count={ranks}"
ranks = {ranks}
mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:ranks]), ("ranks",))


def taken(array, axis, parts):
    order = np.array([place for part in parts for place in part], dtype=int)
    missing = [(0, 0)] * array.ndim
    missing[axis] = (0, max(0, len(set(order.tolist())) - array.shape[axis]))
    return jnp.take(jnp.pad(array, missing), order, axis=axis)


def joined(whole, axis, parts, size):
    order = np.argsort([place for part in parts for place in part])[:size]
    return jnp.take(whole, order, axis=axis)


def spec(axes, axis):
    return jax.sharding.PartitionSpec(*("ranks" if n == axes + axis else None for n in range(axes)))
"""


def over_ranks(
    inner: Snippet, implementation: Implementation, call: Call, differentiated: Sequence[str] = ()
) -> Snippet:
    """The call of a function in all ranks, from the call in one.

    Parameters
    ----------
    inner
        Calls the function with the arrays of one rank, under their names.
    implementation
        Implementation, with its distribution.
    call
        Call of all ranks, in (B, H, S, D).
    differentiated
        The arrays whose gradients are wanted.

    Returns
    -------
    Snippet
        Text of a function that takes the arrays by position.

    Raises
    ------
    NotImplementedError
        For arrays that cannot be shared out.
    """
    distribution = implementation.distribution
    assert distribution is not None
    options = {name: value for name, value in call.options if value is not None}
    count = distribution.of_call(dict(call.shapes), options)
    torch = implementation.framework is Framework.TORCH
    write, start = (_torch, _TORCH) if torch else (_jax, _JAX)
    sharding = "contiguous" if distribution.sharding == HEADS else distribution.sharding
    modules = "import torch.distributed as dist" if torch else "import jax.numpy as jnp"
    written = "\n".join(write(inner, distribution, call, count, differentiated))
    helpers = [text.strip() for use, text in _HELPERS.items() if torch and use in written]
    where = f"def places(length):\n{_PLACES[sharding]}"
    blocks = [start.format(ranks=count).strip(), *helpers, where, inner.definitions, written]
    ends = ("import atexit", "import gc") if torch else ()
    imports = (*inner.imports, *ends, "import inspect", "import os", "import numpy as np", modules)
    return replace(
        inner,
        function="over_ranks",
        arguments=tuple(name for name, _ in call.shapes),
        definitions="\n\n\n".join(blocks),
        imports=imports,
        after="",
    )


def _parts(distribution: Distribution, call: Call, name: str, size: int, count: int) -> str:
    """The expression for the places of each rank along the axis of an array."""
    query, key = call.shape("q"), call.shape("k")
    distribution.places(name, size, query, key, count)  # refuses what cannot be
    if distribution.sharding == HEADS and name in (*KEYS, *PAST):
        group = max(query[-3] // max(key[-3], 1), 1)
        return f"[sorted({{head // {group} for head in part}}) for part in places({query[-3]})]"
    return f"places({distribution.filled(size, count)})"


def _arrays(
    distribution: Distribution, call: Call, count: int, taken: Callable[[str, int, str], str]
) -> tuple[list[str], list[int | None]]:
    """The statements that give each array its shards, and the axes along which they are."""
    lines, axes = [], []
    for name, shape in call.shapes:
        axis = distribution.axis(name, shape, call.shape("q"))
        axis = axis if axis is not None and len(shape) >= -axis else None
        axes.append(axis)
        if axis is not None:
            lines.append(f"    {taken(name, axis, _parts(distribution, call, name, shape[axis], count))}")
    return lines, axes


def _swapped(distribution: Distribution, name: str, axes: int) -> bool:
    return distribution.layout == "BSHD" and axes == 4 and name not in (*SCORES, "weights")


def _results(distribution: Distribution, call: Call) -> list[tuple[str, int | None, int]]:
    """Each result with its axis, and that axis's whole size."""
    query, found = call.shape("q"), []
    for name in OPERATORS["sdpa"].returned({**dict(call.options), **dict(call.shapes)}):
        axis = None if distribution.replicated else distribution.axis(name, query, query)
        found.append((name, axis, 0 if axis is None else query[:-1][axis] if name == "lse" else query[axis]))
    return found


def _further_arguments(call: Call, **given: str) -> list[str]:
    """The statements for arguments that are not keywords of the operator, each given if the function takes it."""
    lengths = (call.shape("q")[-2], call.shape("k")[-2])
    listed = ", ".join(f'"{name}": {value}' for name, value in {**given, "lengths": repr(lengths)}.items())
    return [f"    given = {{{listed}}}"]


def _torch(
    inner: Snippet, distribution: Distribution, call: Call, count: int, differentiated: Sequence[str]
) -> list[str]:
    names = [name for name, _ in call.shapes]
    taken, _ = _arrays(distribution, call, count, lambda n, axis, parts: f"{n} = taken({n}, {axis}, {parts})")
    lines = [f"def over_ranks({', '.join(names)}):"]
    lines += [f"    {name} = Whole.apply({name})" for name in differentiated]
    lines += taken
    swapped = [name for name, shape in call.shapes if _swapped(distribution, name, len(shape))]
    lines += [f"    {name} = {name}.transpose(1, 2)" for name in swapped]
    lines += _further_arguments(call, group="dist.group.WORLD")
    parameters = f"inspect.signature({inner.function}).parameters"
    lines.append(f"    given = {{name: value for name, value in given.items() if name in {parameters}}}")
    results = _results(distribution, call)
    listed = ", ".join(name for name, _, _ in results)
    lines.append(replace(inner, arguments=(*inner.arguments, "**given")).call(f"{listed} = ", depth=1))
    for name, axis, size in results:
        own = f"{name}.transpose(1, 2)" if _swapped(distribution, name, 4 - (name == "lse")) else name
        joined = f"joined({own}, {axis}, {_parts(distribution, call, name, size, count)})"
        lines.append(f"    {name} = {joined if axis is not None else f'same({own})'}")
    return [*lines, f"    return {listed}"]


def _jax(
    inner: Snippet, distribution: Distribution, call: Call, count: int, differentiated: Sequence[str]
) -> list[str]:
    names = [name for name, _ in call.shapes]
    taken, axes = _arrays(distribution, call, count, lambda n, axis, parts: f"{n} = taken({n}, {axis}, {parts})")
    lines = [f"def over_ranks({', '.join(names)}):", *taken]
    swapped = [name for name, shape in call.shapes if _swapped(distribution, name, len(shape))]
    lines += [f"    {name} = {name}.swapaxes(1, 2)" for name in swapped]
    lines += _further_arguments(call, mesh="mesh", axis='"ranks"')
    parameters = f"inspect.signature({inner.function}).parameters"
    lines.append(f"    given = {{name: value for name, value in given.items() if name in {parameters}}}")

    def spec(name: str, shape: int, axis: int | None) -> str:
        if axis is None:
            return "jax.sharding.PartitionSpec()"
        return f"spec({shape}, {({-2: -3, -3: -2}.get(axis, axis)) if _swapped(distribution, name, shape) else axis})"

    ins = [spec(name, len(shape), axis) for (name, shape), axis in zip(call.shapes, axes, strict=True)]
    results = _results(distribution, call)
    outs = [spec(name, 4 - (name == "lse"), axis) for name, axis, _ in results]
    listed = ", ".join(name for name, _, _ in results)
    lines += [
        "",
        f"    def part({', '.join(names)}):",
        replace(inner, arguments=(*inner.arguments, "**given")).call("return ", depth=2),
        "",
        f"    ins = ({', '.join(ins)},)",
        f"    outs = ({', '.join(outs)})",
        '    if "axis" in given:',
        "        part = jax.shard_map(part, mesh=mesh, in_specs=ins, out_specs=outs)",
        f"    arrays = ({', '.join(names)},)",
        f"{INDENT}shards = [jax.device_put(a, jax.sharding.NamedSharding(mesh, one)) for a, one in zip(arrays, ins)]",
        f"    {listed} = jax.jit(part)(*shards)",
    ]
    for name, axis, size in results:
        own = f"{name}.swapaxes(1, 2)" if _swapped(distribution, name, 4 - (name == "lse")) else name
        if axis is not None:
            own = f"joined({own}, {axis}, {_parts(distribution, call, name, size, count)}, {size})"
        lines.append(f"    {name} = {own}")
    return [*lines, f"    return {listed}"]
