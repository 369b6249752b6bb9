"""The compute buffer, estimated: what graph allocation gives cannot be computed from the file.

The rule: attention masks and logits are exact terms; activations are fitted to recorded starts of small and large
models, and the range says how far those starts lie from the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gguf_info.context import Slots
from gguf_info.layers import by_layer, layer_count, sliding_window
from gguf_info.model import Summary
from gguf_info.settings import Settings, drafted_tokens, has_flash_attention

__all__ = ["COMPUTE_BASIS", "ByteRange", "ComputeTerms", "compute_terms", "mask_cells"]

COMPUTE_BASIS = "attention masks exact, activations fitted to recorded starts"
_F16_BYTES = 2
_F32_BYTES = 4
_ONE_OUTPUT_A_SLOT_SINCE = 9460
_MASK_IN_F16_SINCE = 10000
# The part of the widest activations that is alive at once, at least and at most, as a share of the estimate.
_LOW, _HIGH = 0.3, 1.5
# Copies of the per-layer embeddings of all layers that are alive at once, fitted to gemma 3n and 4.
_PER_LAYER_COPIES = 3


@dataclass(frozen=True)
class ByteRange:
    """An estimate with its range."""

    bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True)
class ComputeTerms:
    """Bytes of the compute buffer.

    Attributes:
        exact: Attention masks, and the scores that take their place without flash attention.
        activations: The widest part of a layer, of which more or less is alive at once.
        floor: Logits of all tokens that have them.
        inputs: Embedded tokens, and what follows them from device to device.
    """

    exact: int
    activations: int
    floor: int
    inputs: int

    def on_device(self) -> ByteRange:
        """The buffer of a device that has layers."""
        low = max(self.floor, self.exact + int(self.activations * _LOW))
        middle = max(self.floor + self.inputs // 2, self.exact + self.activations)
        # Logits may find the room of the masks before them too scattered to take.
        scattered = self.floor + self.exact + 3 * self.inputs
        return ByteRange(middle, low, max(scattered, self.exact + int(self.activations * _HIGH)))

    def beside_devices(self) -> ByteRange:
        """The host's share when layers are on devices: the masks and the embedded tokens."""
        middle = self.exact + self.inputs
        return ByteRange(middle, self.inputs // 2, middle + self.inputs)


def compute_terms(summary: Summary, settings: Settings, slots: Slots, cells: Sequence[int]) -> ComputeTerms:
    """The terms of one context.

    Args:
        summary: The model.
        settings: The settings as they are applied.
        slots: The context's slots.
        cells: Cells of each of the context's caches, each of which has a mask.
    """
    architecture, n_ubatch = summary.architecture, settings.ubatch_size
    n_embd = (architecture.embedding_length if architecture else None) or 0
    n_vocab = (architecture.vocab_size if architecture else None) or 0
    has_flash = has_flash_attention(settings)
    exact = sum(cells) * n_ubatch * _mask_value_bytes(settings, has_flash)
    if not has_flash:
        heads = max(by_layer(summary.attention.head_count if summary.attention else None, layer_count(summary)))
        exact += max(cells, default=0) * n_ubatch * heads * _F32_BYTES
    has_few_outputs = settings.build >= _ONE_OUTPUT_A_SLOT_SINCE and not settings.embedding
    n_outputs = slots.n_slots * (1 + drafted_tokens(settings)) if has_few_outputs else n_ubatch
    return ComputeTerms(
        exact=exact,
        activations=n_ubatch * _F32_BYTES * _widest_values(summary, n_embd),
        floor=n_vocab * n_outputs * _F32_BYTES,
        inputs=2 * n_ubatch * n_embd * _F32_BYTES,
    )


def mask_cells(summary: Summary, kinds_and_cells: Sequence[tuple[str, int]]) -> list[int]:
    """Cells of each mask: one cache of a model with windows has a mask with the window and one without."""
    cells = [count for _, count in kinds_and_cells]
    if len(cells) == 1 and sliding_window(summary) and kinds_and_cells[0][0] == "full":
        cells *= 2
    return cells


def _mask_value_bytes(settings: Settings, has_flash: bool) -> int:
    if not has_flash:
        return _F32_BYTES
    # Older builds made the mask in f32 and cast it.
    return _F16_BYTES if settings.build >= _MASK_IN_F16_SINCE else _F16_BYTES + _F32_BYTES


def _widest_values(summary: Summary, n_embd: int) -> int:
    """Values a token that are alive in the widest part of a layer; fitted to recorded starts."""
    architecture, moe = summary.architecture, summary.moe
    n_layer = layer_count(summary)
    widest_ff = max(by_layer(architecture.feed_forward_length if architecture else None, n_layer))
    per_layer = architecture.other.get("embedding_length_per_layer_input") if architecture else None
    beside = _PER_LAYER_COPIES * n_layer * per_layer if isinstance(per_layer, int) else 0
    if moe is None:
        return 2 * widest_ff + 8 * n_embd + beside
    used = max(by_layer(moe.expert_used_count, 1))
    expert_ff = max(by_layer(moe.expert_feed_forward_length, n_layer)) or widest_ff
    return max(8 * n_embd, 4 * used * max(expert_ff, n_embd)) + beside
