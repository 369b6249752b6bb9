"""What still fits: headroom on the device that fills first, in slots, tokens and conversations.

The rule: the answer is a lower bound. KV of the caches that grow with `--ctx-size` is divided by its cells; the
compute buffer, whose constant part a single log does not show, is taken to grow in proportion to the context.
Windowed (SWA) and recurrent memory does not grow with the context.
"""

from __future__ import annotations

from dataclasses import dataclass

from vram_report.document import Buffer, Capacity, Context, Device, KVCache, Run

__all__ = ["DEFAULT_MARGIN_MIB", "build_capacity", "largest_context_that_fitted"]

DEFAULT_MARGIN_MIB = 1024.0
"""The server's automatic fit keeps this much free on each device (`--fit-target`)."""

GROWING_PARTS = ("full", "non-swa", "mla", None)
GPU_KINDS = ("gpu", "igpu", "rpc", "accel", "unknown")


@dataclass(frozen=True)
class _Growth:
    """MiB that one more token of context costs on a device."""

    device: Device
    headroom_mib: float
    kv_mib: float
    compute_mib: float

    @property
    def tokens(self) -> float:
        slope = self.kv_mib + self.compute_mib
        return self.headroom_mib / slope if slope > 0 else float("inf")


def build_capacity(
    devices: list[Device], buffers: list[Buffer], context: Context, kv_cache: KVCache, margin_mib: float
) -> Capacity:
    """Work out the headroom and what it buys.

    Args:
        devices: The run's devices.
        buffers: Its resident buffers.
        context: The context in use.
        kv_cache: The caches of the target model.
        margin_mib: MiB to keep free on each device.
    """
    holders = [d for d in devices if d.free_after_load_mib is not None and _holds(d, buffers)]
    on_gpu = [device for device in holders if device.kind in GPU_KINDS]
    candidates = on_gpu or holders
    if not candidates:
        return Capacity(None, margin_mib, None, None, None, None, None, "unknown: the log gives no free memory")
    growths = [_growth(device, buffers, context, margin_mib) for device in candidates]
    tightest = min(growths, key=lambda growth: (growth.tokens, growth.headroom_mib))
    tokens = _tokens(tightest, context)
    return Capacity(
        device=tightest.device.name,
        margin_mib=margin_mib,
        headroom_mib=round(tightest.headroom_mib, 2),
        additional_slots=_additional_slots(growths, buffers, context),
        additional_ctx_tokens=tokens,
        additional_conversations=tokens // context.n_ctx_slot if tokens is not None and context.n_ctx_slot else None,
        binding=_binding(tightest),
        basis=_basis(tightest),
    )


def _holds(device: Device, buffers: list[Buffer]) -> bool:
    return any(buffer.device == device.name for buffer in buffers) or bool(device.used_mib)


def _growing(buffers: list[Buffer], device: Device) -> float:
    return sum(b.mib for b in buffers if b.device == device.name and b.kind == "kv" and b.part in GROWING_PARTS)


def _growth(device: Device, buffers: list[Buffer], context: Context, margin_mib: float) -> _Growth:
    headroom = (device.free_after_load_mib or 0.0) - margin_mib
    n_ctx = context.n_ctx or 0
    if not n_ctx:
        return _Growth(device, headroom, 0.0, 0.0)
    compute = sum(b.mib for b in buffers if b.device == device.name and b.kind == "compute" and b.role == "model")
    return _Growth(device, headroom, _growing(buffers, device) / n_ctx, compute / n_ctx)


def _tokens(growth: _Growth, context: Context) -> int | None:
    if growth.kv_mib <= 0 or not context.n_ctx:
        return None
    return max(0, int(growth.tokens) // 256 * 256)


def _additional_slots(growths: list[_Growth], buffers: list[Buffer], context: Context) -> int | None:
    if context.kv_unified is not False or not context.n_slots:
        return None
    slots = []
    for growth in growths:
        name = growth.device.name
        held = sum(b.mib for b in buffers if b.device == name and b.kind in ("kv", "recurrent") and b.role == "model")
        per_slot = held / context.n_slots + growth.compute_mib * (context.n_ctx_seq or 0)
        if held > 0:
            slots.append(max(0, int(growth.headroom_mib // per_slot)))
    return min(slots) if slots else None


def _binding(growth: _Growth) -> str | None:
    if growth.kv_mib <= 0:
        return None
    return "compute" if growth.compute_mib > growth.kv_mib else "kv"


def _basis(growth: _Growth) -> str:
    if growth.kv_mib <= 0:
        return f"free after load ({growth.device.free_after_load_basis}) less the margin; the log gives no KV per token"
    return (
        f"free after load ({growth.device.free_after_load_basis}) less the margin, divided by KV per token plus the "
        "whole compute buffer per token: a lower bound from one log"
    )


def largest_context_that_fitted(run: Run) -> int | None:
    """The largest context, a multiple of 256, that would have fitted where an allocation failed.

    The KV cache and the compute buffer are taken to grow in proportion to the context, the cache of sliding-window
    layers and recurrent state to stay. When the KV cache itself failed, the compute buffer behind it is unknown, so
    the safety margin is kept free for it.

    Returns:
        None where the log lacks the free memory, the context or the size that failed, or where the failure is not
        one that a smaller context mends.
    """
    failure, n_ctx = run.failure, run.context.n_ctx
    device = next((d for d in run.devices if failure and d.name == failure.device), None)
    if failure is None or failure.requested_mib is None or not n_ctx or device is None or device.free_mib is None:
        return None
    own = [b for b in run.buffers if b.device == device.name]
    growing = sum(b.mib for b in own if b.kind == "kv" and b.part in GROWING_PARTS)
    fixed = sum(b.mib for b in own) - growing
    if "kv cache" in failure.message:
        if growing:  # the cache that failed is not the first, and which one it is the log does not say
            return None
        room, slope = device.free_mib - fixed - run.capacity.margin_mib, failure.requested_mib / n_ctx
    elif "compute" in failure.message and growing:
        room, slope = device.free_mib - fixed, (growing + failure.requested_mib) / n_ctx
    else:
        return None
    tokens = int(room / slope) // 256 * 256 if room > 0 else 0
    return tokens if 0 < tokens < n_ctx else None
