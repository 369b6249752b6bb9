"""What a multimodal projector's compute buffer takes, where its images have one size.

The rule: only kinds that a recorded start has proved are predicted. The encoder takes all patches of one image at once
(llama.cpp's tools/mtmd/clip.cpp); what is alive at most is a feed-forward network with three rows of the embedding
beside it, or five rows in the attention; without flash attention its scores and six.
"""

from __future__ import annotations

from gguf_info.compute import ByteRange
from gguf_info.model import Summary
from gguf_info.settings import Settings

__all__ = ["projector_compute"]

_FIXED_SIZE = ("gemma3",)
_F32_BYTES = 4
_BESIDE_FEED_FORWARD, _IN_ATTENTION, _BESIDE_SCORES = 3, 5, 6
# Another backend may keep a copy of the widest part for its own layout.
_HIGH = 1.5


def projector_compute(summary: Summary, settings: Settings) -> ByteRange | None:
    """The compute buffer for one image; None where the projector's images have no one size, or it is not known.

    Args:
        summary: The projector's file.
        settings: The start, whose flash attention the encoder follows.
    """
    values = {name: summary.metadata.get(f"clip.vision.{name}") for name in _NEEDED}
    sizes = {name: value for name, value in values.items() if isinstance(value, int) and value > 0}
    kind = summary.metadata.get("clip.projector_type") or summary.metadata.get("clip.vision.projector_type")
    if kind not in _FIXED_SIZE or len(sizes) != len(_NEEDED) or "clip.has_audio_encoder" in summary.metadata:
        return None
    n_patches = (sizes["image_size"] // sizes["patch_size"]) ** 2
    n_embd, n_ff = sizes["embedding_length"], sizes["feed_forward_length"]
    widest = max(n_ff + _BESIDE_FEED_FORWARD * n_embd, _IN_ATTENTION * n_embd) * n_patches * _F32_BYTES
    if settings.flash_attn == "off":
        scores = n_patches**2 * sizes["attention.head_count"] * _F32_BYTES
        widest = max(widest, scores + _BESIDE_SCORES * n_embd * n_patches * _F32_BYTES)
    return ByteRange(widest, widest // 2, int(widest * _HIGH))


_NEEDED = ("image_size", "patch_size", "embedding_length", "feed_forward_length", "attention.head_count")
