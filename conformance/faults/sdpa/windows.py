"""(SDPA-11) Windows one key too wide or too narrow, on the wrong diagonal, or ignored."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault

Sides = tuple[int | None, int | None]


@fault("SDPA-11", "the window ignored", "jax 32300, hnet PR 21, executorch PR 21384")
class WindowIgnored(Attention):
    """Rows see keys outside the window."""

    def window(self, x: Inputs) -> Sides:
        return (None, None)


@fault("SDPA-11", "a window one key too wide at the left", "transformers 39408, zml PR 763, mlx-lm PR 390")
class WindowLeftOneMore(Attention):
    """W is taken as W + 1."""

    def window(self, x: Inputs) -> Sides:
        left, right = super().window(x)
        return None if left is None else left + 1, right


@fault("SDPA-11", "a window one key too narrow at the left", "tokenspeed PR 578, vllm 3385")
class WindowLeftOneFewer(Attention):
    """The left side also counts the row's own key."""

    def window_allows(self, x: Inputs) -> Array:
        left, _ = self.window(x)
        allowed = super().window_allows(x)
        return allowed if not left else allowed & (self.keys(x) > self.diagonal(x) - left)


@fault("SDPA-11", "a window one key too narrow at the right", "keras PR 22814")
class WindowRightOneFewer(Attention):
    """The right end of the window is exclusive."""

    def window_allows(self, x: Inputs) -> Array:
        _, right = self.window(x)
        allowed = super().window_allows(x)
        return allowed if not right else allowed & (self.keys(x) < self.diagonal(x) + right)


@fault("SDPA-11", "the left side of the window used for both", "vllm PR 9679, transformers 39408")
class WindowSymmetric(Attention):
    """A window (W, 0) becomes (W, W). Calls with is_causal are right."""

    def window(self, x: Inputs) -> Sides:
        left, _ = super().window(x)
        return left, left


@fault("SDPA-11", "a window side of 0 means open", "flash-attention 2574, onnx PR 8006")
class WindowZeroIsOpen(Attention):
    """The code computes ``side or everything``, and 0 is false."""

    def window(self, x: Inputs) -> Sides:
        left, right = super().window(x)
        return left or None, right or None


@fault("SDPA-11", "an open side of the window taken as 0", "vllm PR 29065, unsloth PR 8253")
class WindowOpenIsZero(Attention):
    """The code computes ``side or 0``, and None is false."""

    def window(self, x: Inputs) -> Sides:
        return super().window(x) if x.window is None else (x.window[0] or 0, x.window[1] or 0)


@fault("SDPA-11", "the window does not follow the causal offset", "lalamo PR 200")
class WindowWithoutOffset(Attention):
    """The offset shifts is_causal, but the window stays at the top left. Calls with offset 0 are right."""

    def window_allows(self, x: Inputs) -> Array:
        rows, (left, right) = np.arange(x.shape[2])[:, None], self.window(x)
        allowed = np.ones(x.shape, bool)
        allowed = allowed if left is None else allowed & (self.keys(x) >= rows - left)
        return allowed if right is None else allowed & (self.keys(x) <= rows + right)


@fault("SDPA-13", "causal lost where the window is longer than the keys", "libflash_attn PR 11")
class WindowWideDropsCausal(Attention):
    """The code switches the windowed kernel off, and the causal mask with it."""

    def causal_allows(self, x: Inputs) -> Array:
        left, _ = self.window(x)
        return np.ones(x.shape, bool) if left is not None and left >= x.shape[3] else super().causal_allows(x)


@fault("SDPA-13", "causal opens the window to the left", "unsloth PR 8253")
class WindowDroppedWithCausal(Attention):
    """is_causal is implemented as a window of (everything, 0), which replaces the given left side."""

    def window(self, x: Inputs) -> Sides:
        return (None, super().window(x)[1]) if x.is_causal else super().window(x)


@fault("SDPA-11", "the window aligned bottom-right", "flash-attention 1778, pytorch PR 120143")
class WindowBottomRight(Attention):
    """Calls with Sq = Sk are still right."""

    def window_allows(self, x: Inputs) -> Array:
        (left, right), diagonal = self.window(x), self.diagonal(x) + x.shape[3] - x.shape[2]
        allowed = np.ones(x.shape, bool)
        allowed = allowed if left is None else allowed & (self.keys(x) >= diagonal - left)
        return allowed if right is None else allowed & (self.keys(x) <= diagonal + right)


@fault("SDPA-11", "the window ignored with grouped heads", "vllm 17476")
class WindowIgnoredGrouped(Attention):
    """Calls in which every query head has its own key head are right."""

    def window(self, x: Inputs) -> Sides:
        return (None, None) if x.group > 1 else super().window(x)
