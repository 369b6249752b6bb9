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

__all__ = ["COMPUTE_BASIS", "ByteRange", "ComputeTerms", "compute_terms", "mask_cells", "output_tokens"]

COMPUTE_BASIS = "attention masks exact, activations fitted to recorded starts"
_F16_BYTES = 2
_F32_BYTES = 4
_ONE_OUTPUT_A_SLOT_SINCE = 9460
# Older builds made the mask in f32 and cast it.
_MASK_IN_F16_SINCE = 10000
# The part of the widest activations that is alive at once, at least and at most, as a share of the estimate.
_LOW, _HIGH = 0.25, 1.5
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
        masks: Attention masks as the host writes them.
        cast_masks: Their copies in f16, of builds that wrote them in f32.
        scores: Attention scores, without flash attention.
        activations: The widest part of a layer, of which more or less is alive at once.
        logits: Logits of all tokens that have them.
        inputs: Embedded tokens, and what follows them from device to device.
    """

    masks: int
    cast_masks: int
    scores: int
    activations: int
    logits: int
    inputs: int

    def of_layers(self, *, has_output: bool, copies: int = 1, borrowed: int = 0) -> ByteRange:
        """The buffer of a device, or of a host without devices, that computes layers.

        Args:
            has_output: Whether it computes the output, and so has the logits.
            copies: Copies of the inputs that devices in a pipeline keep.
            borrowed: The largest of the host's weights that are copied in to be multiplied here.
        """
        logits = self.logits if has_output else 0
        once = self.masks + self.cast_masks + self.scores
        exact = self.masks * copies + self.cast_masks + self.scores
        low = max(logits, once + int(self.activations * _LOW))
        middle = max(logits + self.inputs // 2, exact + self.activations)
        # Logits may find the room of the masks before them too scattered to take.
        scattered = logits + exact + 3 * self.inputs
        high = max(scattered, exact + int(self.activations * _HIGH))
        return ByteRange(middle + borrowed, low, high + borrowed)

    def beside_devices(self, copies: int = 1) -> ByteRange:
        """The host's share when devices compute: the masks and the embedded tokens."""
        middle = self.masks * copies + self.inputs
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
    in_f16 = has_flash and settings.build >= _MASK_IN_F16_SINCE
    values = sum(cells) * n_ubatch
    heads = max(by_layer(summary.attention.head_count if summary.attention else None, layer_count(summary)))
    return ComputeTerms(
        masks=values * (_F16_BYTES if in_f16 else _F32_BYTES),
        cast_masks=values * _F16_BYTES if has_flash and not in_f16 else 0,
        scores=0 if has_flash else max(cells, default=0) * n_ubatch * heads * _F32_BYTES,
        activations=n_ubatch * _F32_BYTES * _widest_values(summary, n_embd),
        logits=n_vocab * output_tokens(settings, slots) * _F32_BYTES,
        inputs=2 * n_ubatch * n_embd * _F32_BYTES,
    )


def output_tokens(settings: Settings, slots: Slots) -> int:
    """Tokens of a batch that have logits; older builds reserve them for all."""
    has_few = settings.build >= _ONE_OUTPUT_A_SLOT_SINCE and not settings.embedding
    return slots.n_slots * (1 + drafted_tokens(settings)) if has_few else settings.ubatch_size


def mask_cells(summary: Summary, kinds_and_cells: Sequence[tuple[str, int]]) -> list[int]:
    """Cells of each mask: one cache of a model with windows has a mask with the window and one without."""
    cells = [count for _, count in kinds_and_cells]
    if len(cells) == 1 and sliding_window(summary) and kinds_and_cells[0][0] == "full":
        cells *= 2
    return cells


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
