"""How llama-server divides its context: slots, streams, and cells of each cache, by build.

The rule: one table row for each range of builds in which the rule is the same, as recorded starts of those builds show.
Terms: a *stream* is a part of the cache of its own; a *cell* holds one token of one stream. Unified, all slots share
one stream; divided, each has its own.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NEWEST_BUILD", "Slots", "divide_context", "swa_cells"]

NEWEST_BUILD = 11549
"""The newest build whose rules were checked against a recorded start; later ones are taken to be like it."""

_STREAMS_SINCE = 5913
_SWA_SINCE = 5429
_SWA_BY_UBATCH_SINCE = 5554
_NO_PADDING_SINCE = 6868
_CAPPED_SINCE = 6925
_PAD_256_SINCE = 6975
_TRAINED_CONTEXT_SINCE = 7407
_FOUR_SLOTS_SINCE = 6925
_FOUR_SLOTS_UNLESS_GIVEN_SINCE = 7433


@dataclass(frozen=True)
class Slots:
    """The context of a start.

    Attributes:
        n_slots: Number of slots.
        n_ctx: Cells of all streams of a cache without a window.
        n_ctx_slot: Tokens that one slot can hold.
        capped: Whether that is less than its part of the cache, since the model was trained on less.
        kv_unified: Whether the slots share one stream.
        streams: Number of streams.
        cells: Cells of one stream.
    """

    n_slots: int
    n_ctx: int
    n_ctx_slot: int
    capped: bool
    kv_unified: bool
    streams: int
    cells: int


def divide_context(
    *,
    ctx_size: int,
    parallel: int | None,
    kv_unified: bool | None,
    n_ctx_train: int | None,
    flash_attn: bool,
    build: int,
) -> Slots:
    """The slots and cells of a start.

    Args:
        ctx_size: `--ctx-size`; 0 is the server's default, of old builds a fixed number.
        parallel: `--parallel`, or None when it is not given.
        kv_unified: `--kv-unified`, or None when it is not given.
        n_ctx_train: The context that the model was trained on.
        flash_attn: Whether flash attention is on; old builds pad by it.
        build: llama.cpp's build number.
    """
    n_slots, unified = _slots(parallel, kv_unified, build)
    n_ctx = ctx_size or _default_context(n_ctx_train, build)
    padding = _padding(flash_attn, build)
    if unified or n_slots == 1:
        cells, streams = _pad(n_ctx, padding), 1
    elif build >= _CAPPED_SINCE:
        cells, streams = _pad(_pad(n_ctx, padding) // n_slots, padding), n_slots
    else:
        cells, streams = _pad(-(-n_ctx // n_slots), padding), n_slots
    n_ctx_seq = cells if build >= _CAPPED_SINCE else n_ctx // n_slots
    capped = build >= _CAPPED_SINCE and n_ctx_train is not None and n_ctx_seq > n_ctx_train
    return Slots(
        n_slots=n_slots,
        n_ctx=cells * streams,
        n_ctx_slot=n_ctx_train if capped and n_ctx_train else n_ctx_seq,
        capped=capped,
        kv_unified=unified,
        streams=streams,
        cells=cells,
    )


def swa_cells(slots: Slots, *, window: int, n_batch: int, n_ubatch: int, flash_attn: bool, build: int) -> int | None:
    """Cells of one stream of the sliding-window cache; None for builds that kept one cache for all layers."""
    if build < _SWA_SINCE:
        return None
    sequences = slots.n_slots if slots.kv_unified or build < _STREAMS_SINCE else 1
    tokens = window * sequences + (n_ubatch if build >= _SWA_BY_UBATCH_SINCE else n_batch)
    if build >= _PAD_256_SINCE:
        return _pad(min(slots.cells, tokens), 256)
    return min(slots.cells, _pad(tokens, _padding(flash_attn, build)))


def _slots(parallel: int | None, kv_unified: bool | None, build: int) -> tuple[int, bool]:
    """Number of slots, and whether they share the cache; 0 or less is "not given"."""
    n_slots = parallel if parallel and parallel > 0 else None
    if build < _STREAMS_SINCE:
        return n_slots or 1, True
    is_automatic = n_slots is None and build >= _FOUR_SLOTS_SINCE
    if _FOUR_SLOTS_SINCE <= build < _FOUR_SLOTS_UNLESS_GIVEN_SINCE and n_slots == 1 and not kv_unified:
        is_automatic = True
    if is_automatic:
        return 4, True
    return n_slots or 1, bool(kv_unified)


def _default_context(n_ctx_train: int | None, build: int) -> int:
    if build >= _TRAINED_CONTEXT_SINCE or 3100 <= build <= 4013:
        return n_ctx_train or 4096
    return 4096 if build > 4013 else 512


def _padding(flash_attn: bool, build: int) -> int:
    if build >= _PAD_256_SINCE:
        return 256
    if build >= _NO_PADDING_SINCE or build < 2493:
        return 1
    return 256 if flash_attn and build >= 2871 else 32


def _pad(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
