"""(TREE-1 to TREE-4) Trees of draft tokens that are ignored, misread, or placed at the wrong keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


@fault("TREE-1", "the tree is ignored: a draft token sees all others", "sglang PR 20278, speculators PR 897")
class TreeIgnored(Attention):
    """Every row sees every key."""

    def tree_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool)


@fault("TREE-1", "the tree is taken for a chain: causal in its place", "FastDeploy PR 3514, sglang 7523")
class TreeCausal(Attention):
    """The mask is not read below the diagonal, so a row also sees earlier branches."""

    def seen_nodes(self, x: Inputs) -> Array:
        seen = super().seen_nodes(x)
        return np.tril(np.ones_like(seen))


@fault("TREE-1", "draft tokens see their siblings", "cf. FastDeploy PR 3514, cf. sglang 7523")
class TreeSiblings(Attention):
    """A token also sees the earlier tokens that have the same parent."""

    def seen_nodes(self, x: Inputs) -> Array:
        parents, seen = self.parents(x), super().seen_nodes(x)
        return seen | np.tril(parents[:, :, None] == parents[:, None])


@fault("TREE-1", "draft tokens see their parent and no other ancestor", "cf. TensorRT-LLM PR 12962")
class TreeParentOnly(Attention):
    """Trees of at most two levels are right."""

    def seen_nodes(self, x: Inputs) -> Array:
        nodes = np.arange(x.shape[2])
        return np.eye(len(nodes), dtype=bool) | (self.parents(x)[:, :, None] == nodes)


@fault("TREE-1", "draft tokens do not see themselves", "cf. speculators PR 897")
class TreeWithoutSelf(Attention):
    """The diagonal of the tree mask is missing."""

    def seen_nodes(self, x: Inputs) -> Array:
        return super().seen_nodes(x) & ~np.eye(x.shape[2], dtype=bool)


@fault(
    "TREE-1",
    "parents are counted from the last token of the prefix: each is one too small",
    "cf. TensorRT-LLM PR 12962",
)
class TreeParentsOneLess(Attention):
    """One side numbers the root as a token of the tree, and the other does not."""

    def parents(self, x: Inputs) -> Array:
        return np.maximum(super().parents(x) - 1, -1)


@fault("TREE-1", "parents are one too large", "cf. TensorRT-LLM PR 12962")
class TreeParentsOneMore(Attention):
    """The index is limited to the token before the child, so chains are right."""

    def parents(self, x: Inputs) -> Array:
        return np.minimum(super().parents(x) + 1, np.arange(x.shape[2]) - 1)


@fault("TREE-1", "every token follows the one before where a parent was chosen", "TensorRT-LLM PR 12962, sglang 7523")
class TreeParentsIgnored(Attention):
    """Roots stay roots; all other tokens are treated as a chain."""

    def parents(self, x: Inputs) -> Array:
        parents = super().parents(x)
        return np.where(parents < 0, -1, np.arange(x.shape[2]) - 1)


@fault("TREE-1", "the tree is transposed: tokens see those that follow them", "cf. speculators PR 897")
class TreeTransposed(Attention):
    """A token sees its descendants instead of its ancestors."""

    def seen_nodes(self, x: Inputs) -> Array:
        return super().seen_nodes(x).swapaxes(1, 2)


@fault("TREE-1", "the prefix is hidden from the tree", "mlxcel 1204")
class TreeWithoutPrefix(Attention):
    """The mask covers only the draft tokens and has no columns for the prefix."""

    def prefix_allows(self, x: Inputs) -> Array:
        return np.zeros((1, 1, 1, x.shape[3]), bool)


@fault("TREE-1", "the last token of the prefix is hidden from the tree", "lalamo PR 207")
class TreePrefixOneShort(Attention):
    """The length of the prefix is taken as one less than it is."""

    def prefix_allows(self, x: Inputs) -> Array:
        return self.keys(x) < self.offset(x) - 1


@fault("TREE-1", "keys behind the tree are seen", "sglang 37553")
class TreeSeesBehind(Attention):
    """Keys that the tree mask does not cover count as allowed. Calls where the tree ends at the last key are right."""

    def tree_allows(self, x: Inputs) -> Array:
        return super().tree_allows(x) | (self.keys(x) >= self.offset(x) + x.shape[2])


@fault("TREE-1", "the tree stands at the last keys, wherever it begins", "lalamo PR 207")
class TreeAtTheEnd(Attention):
    """The prefix length is computed as Sk − Sq, which is wrong in a cache of fixed size."""

    def tree_allows(self, x: Inputs) -> Array:
        return super().tree_allows(replace(x, causal_offset=x.shape[3] - x.shape[2]))


@fault("TREE-2", "the tree of the first batch is used for all", "sglang-jax PR 1569")
class TreeFirstBatch(Attention):
    """A sequence reads the tree mask of another one."""

    def parents(self, x: Inputs) -> Array:
        return super().parents(x)[:1]


@fault("TREE-2", "of the prefixes of a batch the first is used for all", "cf. sglang-jax PR 1569, cf. rMLX PR 38")
class TreeFirstOffset(Attention):
    """Batches with prefixes of equal length are right."""

    def prefix_allows(self, x: Inputs) -> Array:
        return self.keys(x) < self.offset(x)[:1]


@fault("TREE-2", "of a tree of more than 32 tokens the first 32 are seen", "cf. TensorRT-LLM PR 13006")
class TreeOf32Bits(Attention):
    """Only one word of the packed mask is read for each row."""

    def seen_nodes(self, x: Inputs) -> Array:
        return super().seen_nodes(x) & (np.arange(x.shape[2]) < 32)


@fault("TREE-3", "a mask beside a tree is ignored", "cf. AngelSlim PR 62")
class TreeInPlaceOfMask(Attention):
    """The code has room for only one mask."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(x) if x.tree_parents is None else np.broadcast_to(self.tree_allows(x), x.shape)


@fault("TREE-3", "causal beside a tree takes its place", "AngelSlim PR 62")
class CausalInPlaceOfTree(Attention):
    """With is_causal the tree is never read. Trees that are chains are right."""

    def tree_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.is_causal else super().tree_allows(x)


@fault("TREE-4", "a tree that does not fit is read as if it did", "cf. sglang-jax 1611")
class TreeUnchecked(Attention):
    """Tokens without an entry become roots, and entries and batches beyond those of q are dropped."""

    def check_masks(self, x: Inputs) -> None:
        pass

    def parents(self, x: Inputs) -> Array:
        parents = super().parents(x)[: x.shape[0], : x.shape[2]]
        return np.pad(parents, ((0, 0), (0, x.shape[2] - parents.shape[1])), constant_values=-1)
