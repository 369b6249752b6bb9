"""What a model will need in llama-server, predicted from its header.

The rule: weights and caches are exact, from tensor sizes and cells; the compute buffer is what graph allocation gives
and cannot be computed, so it is an estimate with a range, fitted to recorded starts of small and large models. Nothing
is known of what a driver takes for itself unless it is given. A device fits if even the high end of the range does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gguf_info.constants import block_size_by_name
from gguf_info.context import NEWEST_BUILD, Slots, divide_context, swa_cells
from gguf_info.errors import GGUFError
from gguf_info.layers import CacheLayer, by_layer, cache_layers, layer_count, sliding_window, state_layers
from gguf_info.model import Summary, tensor_bytes
from gguf_info.reader import Tensor

__all__ = [
    "CACHE_TYPES",
    "COMPUTE_BASIS",
    "HOST",
    "ByteRange",
    "CachePart",
    "DeviceMemory",
    "Estimate",
    "HostMemory",
    "Settings",
    "estimate",
]

HOST = "CPU"
COMPUTE_BASIS = (
    "attention masks exact; activations fitted to recorded starts; a device fits if the high end of the range does"
)
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""Types that `--cache-type-k` and `--cache-type-v` take."""

_MIB = 2**20
_F16_BYTES = 2
_F32_BYTES = 4
_FLASH_ATTENTION_AUTO_SINCE = 6325
_ONE_OUTPUT_A_SLOT_SINCE = 9460
_MASK_IN_F16_SINCE = 10000
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_INPUT_TENSORS = ("token_embd", "per_layer_token_embd", "token_types", "position_embd")
_BLOCK = re.compile(r"blk\.(\d+)\.")
# The part of the widest activations that is alive at once, at least and at most, as a share of the estimate.
_LOW, _HIGH = 0.3, 1.5


@dataclass(frozen=True)
class Settings:
    """A start of llama-server, by its own flag names and defaults.

    Attributes:
        ctx_size: `--ctx-size`; 0 is the default of the build.
        parallel: `--parallel`; None when not given.
        kv_unified: `--kv-unified` or `--no-kv-unified`; None when not given.
        cache_type_k: `--cache-type-k`.
        cache_type_v: `--cache-type-v`.
        batch_size: `--batch-size`.
        ubatch_size: `--ubatch-size`.
        flash_attn: `--flash-attn`; `auto` is taken as on, which it is where the device can.
        n_gpu_layers: `--n-gpu-layers`; None is all of them.
        n_cpu_moe: `--n-cpu-moe`; experts of so many first layers stay on the host.
        override_tensor: `--override-tensor`: regular expression and buffer (`CPU` or a device's name).
        tensor_split: `--tensor-split`; empty is in proportion to the devices' memory.
        swa_full: `--swa-full`.
        kv_offload: Off for `--no-kv-offload`.
        cache_ram_mib: `--cache-ram`, the limit of the prompt cache in host memory; -1 is no limit.
        memory_mib: Free memory of each device by name; None where it is not known. Empty: one device `GPU0`.
        context_mib: What the driver takes on each device for a process; None when not known.
        build: llama.cpp's build number.
    """

    ctx_size: int = 0
    parallel: int | None = None
    kv_unified: bool | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    batch_size: int = 2048
    ubatch_size: int = 512
    flash_attn: Literal["on", "off", "auto"] = "auto"
    n_gpu_layers: int | None = None
    n_cpu_moe: int = 0
    override_tensor: tuple[tuple[str, str], ...] = ()
    tensor_split: tuple[float, ...] = ()
    swa_full: bool = False
    kv_offload: bool = True
    cache_ram_mib: int = 8192
    memory_mib: Mapping[str, float | None] = field(default_factory=dict)
    context_mib: float | None = None
    build: int = NEWEST_BUILD


@dataclass(frozen=True)
class CachePart:
    """One cache: `cells` of each of `streams`, for `layers` of the model, in bytes of K and V together."""

    kind: str
    cells: int
    layers: int
    streams: int
    bytes: int


@dataclass(frozen=True)
class ByteRange:
    """An estimate with its range."""

    bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True)
class DeviceMemory:
    """What one device holds; `used_bytes` has the middle of the compute range, `fits` is judged by its high end."""

    name: str
    total_bytes: int | None
    weights_bytes: int
    kv_bytes: int
    recurrent_bytes: int
    compute: ByteRange
    context_bytes: int | None
    used_bytes: int
    fits: bool | None


@dataclass(frozen=True)
class HostMemory:
    """What the host holds, by kind; `prompt-cache` is a limit that fills later and is not part of `used_bytes`."""

    used_bytes: int
    parts: Mapping[str, int]


@dataclass(frozen=True)
class ExtraModel:
    """What a model that is loaded beside the main one takes on one device, or on the host.

    Attributes:
        role: `draft` or `mmproj`.
        path: Its file.
        device: The device's name, or `CPU`.
        weights_bytes: Its tensors there.
        kv_bytes: Its caches, recurrent states and output buffer there.
        compute: Its compute buffer there; None when it is not predicted.
    """

    role: str
    path: str
    device: str
    weights_bytes: int
    kv_bytes: int
    compute: ByteRange | None

    @property
    def used_bytes(self) -> int:
        """All of it, with the middle of the compute range."""
        return self.weights_bytes + self.kv_bytes + (self.compute.bytes if self.compute else 0)


@dataclass(frozen=True)
class Estimate:
    """The prediction for one model and one start.

    Attributes:
        settings: The settings as they were applied: defaults filled in, batches clamped.
        weights_total_bytes: The model's tensors.
        weights_gpu_bytes: Weights on devices; with a tied embedding more than the file has.
        weights_host_bytes: Weights that stay on the host.
        cache: The KV caches.
        recurrent_bytes: Recurrent states of all slots.
        output_bytes: The output buffer, in host memory.
        compute: Compute buffers of all devices and the host.
        devices: By device.
        host: The host.
        slots: How the context is divided.
        host_compute: The host's own compute buffer, part of `compute`.
        extra_models: What is loaded beside the model, from `companions`.
    """

    settings: Settings
    weights_total_bytes: int
    weights_gpu_bytes: int
    weights_host_bytes: int
    cache: tuple[CachePart, ...]
    recurrent_bytes: int
    output_bytes: int
    compute: ByteRange
    devices: tuple[DeviceMemory, ...]
    host: HostMemory
    slots: Slots
    host_compute: ByteRange
    extra_models: tuple[ExtraModel, ...] = ()

    @property
    def kv_bytes(self) -> int:
        """All KV caches."""
        return sum(part.bytes for part in self.cache)

    @property
    def fits(self) -> bool | None:
        """Whether every device fits; None when a device's memory is not known."""
        verdicts = [device.fits for device in self.devices]
        if False in verdicts:
            return False
        return None if None in verdicts else True


def estimate(summary: Summary, settings: Settings | None = None) -> Estimate:
    """Predict what a start of llama-server takes.

    Args:
        summary: The model, from `read_summary`.
        settings: The start; llama-server's defaults when left out.

    Raises:
        GGUFError: The model's sizes are not in the file or not known, or the server would refuse the settings.
    """
    settings = settings or Settings()
    has_flash = _has_flash_attention(settings)
    _require_valid(summary, settings, has_flash)
    slots = _slots(summary, settings, has_flash)
    n_batch = min(settings.batch_size, slots.n_ctx)
    applied = replace(
        settings, ctx_size=slots.n_ctx, batch_size=n_batch, ubatch_size=min(settings.ubatch_size, n_batch)
    )
    placement = _Placement(summary, applied)
    groups = _cache_groups(summary, applied, slots, has_flash)
    caches = [_cache_bytes(group, applied, slots, summary, has_flash) for group in groups]
    states = _state_bytes(summary, slots)
    width = _compute_range(summary, applied, slots, groups, has_flash)
    return _assemble(summary, applied, slots, placement, groups, caches, states, width)


@dataclass(frozen=True)
class _CacheGroup:
    """Layers whose cache has the same kind and number of cells."""

    kind: str
    cells: int
    layers: tuple[CacheLayer, ...]


class _Placement:
    """Which device holds a layer, and which a tensor.

    Current builds put layers from n_layer + 1 - n_gpu_layers on devices; layer n_layer is the output.
    """

    def __init__(self, summary: Summary, settings: Settings) -> None:
        self.n_layer = layer_count(summary)
        self.memory: dict[str, float | None] = dict(settings.memory_mib) or {"GPU0": None}
        self.names = list(self.memory)
        wanted = self.n_layer + 1 if settings.n_gpu_layers is None else settings.n_gpu_layers
        self._offloaded = max(0, min(wanted, self.n_layer + 1))
        self._first = self.n_layer + 1 - self._offloaded
        self._bounds = self._split(settings)
        experts = [(rf"blk\.{index}{_EXPERTS}", HOST) for index in range(min(settings.n_cpu_moe, self.n_layer))]
        self._overrides = [(re.compile(pattern), name) for pattern, name in (*settings.override_tensor, *experts)]

    def of_layer(self, index: int) -> str:
        """The device of a layer; of the output for index n_layer."""
        if index < self._first:
            return HOST
        place = (index - self._first) / self._offloaded
        device = next((n for n, bound in enumerate(self._bounds) if place < bound), len(self._bounds) - 1)
        return self.names[device]

    def of_tensor(self, tensor: Tensor) -> str:
        """The device of a tensor."""
        for pattern, name in self._overrides:
            if pattern.search(tensor.name):
                return name
        match = _BLOCK.match(tensor.name)
        if match:
            return self.of_layer(int(match[1]))
        if tensor.name.startswith(_INPUT_TENSORS):
            return HOST
        return self.of_layer(self.n_layer if tensor.name.startswith("output") else 0)

    def _split(self, settings: Settings) -> list[float]:
        shares = [*settings.tensor_split] or [size or 1.0 for size in self.memory.values()]
        shares = [*shares, *[0.0] * (len(self.names) - len(shares))][: len(self.names)]
        total = sum(shares) or 1.0
        return [sum(shares[: n + 1]) / total for n in range(len(shares))]


def _has_flash_attention(settings: Settings) -> bool:
    if settings.flash_attn == "auto":
        return settings.build >= _FLASH_ATTENTION_AUTO_SINCE
    return settings.flash_attn == "on"


def _require_valid(summary: Summary, settings: Settings, has_flash: bool) -> None:
    def refuse(expected: str, found: str, hint: str = "") -> GGUFError:
        return GGUFError(summary.file.path, None, expected=expected, found=found, hint=hint)

    for flag, name in (("-k", settings.cache_type_k), ("-v", settings.cache_type_v)):
        if name not in CACHE_TYPES:
            raise refuse(f"--cache-type{flag} out of {', '.join(CACHE_TYPES)}", name)
    is_quantized = settings.cache_type_v not in ("f32", "f16", "bf16")
    if is_quantized and not has_flash:
        raise refuse("flash attention for a quantized V cache", "none", "use --flash-attn on, or --cache-type-v f16")
    if HOST in settings.memory_mib:
        raise refuse("--memory of a device", HOST, "the host's memory is not judged")
    names = {HOST, *(settings.memory_mib or {"GPU0": None})}
    for _, name in settings.override_tensor:
        if name not in names:
            raise refuse(f"--override-tensor to one of {', '.join(sorted(names))}", name)
    if summary.tensors is None or summary.tensors.bytes is None:
        raise refuse("tensors of known types", "none, or types that the installed gguf package does not know")
    if summary.file.missing_shards:
        raise refuse("all parts of the model", f"{len(summary.file.missing_shards)} missing")


def _slots(summary: Summary, settings: Settings, has_flash: bool) -> Slots:
    return divide_context(
        ctx_size=settings.ctx_size,
        parallel=settings.parallel,
        kv_unified=settings.kv_unified,
        n_ctx_train=summary.architecture.context_length if summary.architecture else None,
        flash_attn=has_flash,
        build=settings.build,
    )


def _cache_groups(summary: Summary, settings: Settings, slots: Slots, has_flash: bool) -> list[_CacheGroup]:
    layers = cache_layers(summary)
    window_cells = swa_cells(
        slots,
        window=sliding_window(summary),
        n_batch=settings.batch_size,
        n_ubatch=settings.ubatch_size,
        flash_attn=has_flash,
        build=settings.build,
    )
    if window_cells is None:
        return [_CacheGroup("full", slots.cells, layers)] if layers else []
    cells = {"swa": slots.cells if settings.swa_full else window_cells}
    kinds = dict.fromkeys(layer.kind for layer in sorted(layers, key=lambda layer: layer.kind))
    return [
        _CacheGroup(kind, cells.get(kind, slots.cells), tuple(layer for layer in layers if layer.kind == kind))
        for kind in kinds
    ]


def _cache_bytes(
    group: _CacheGroup, settings: Settings, slots: Slots, summary: Summary, has_flash: bool
) -> dict[int, int]:
    """Bytes of a cache by layer."""
    # Without flash attention V is kept transposed, with rows as wide as the widest layer's.
    widest = max((layer.v_values for layer in group.layers), default=0)
    rows = {
        layer.index: _row_bytes(settings.cache_type_k, layer.k_values, summary)
        + _row_bytes(settings.cache_type_v, layer.v_values if has_flash else widest, summary)
        for layer in group.layers
    }
    return {index: row * group.cells * slots.streams for index, row in rows.items()}


def _row_bytes(cache_type: str, values: int, summary: Summary) -> int:
    block, block_bytes = block_size_by_name(cache_type)
    if values % block:
        raise GGUFError(
            summary.file.path,
            None,
            expected=f"rows of a multiple of {block} values for a {cache_type} cache",
            found=str(values),
            hint="use --cache-type-k f16 --cache-type-v f16",
        )
    return values // block * block_bytes


def _state_bytes(summary: Summary, slots: Slots) -> dict[int, int]:
    return {
        layer.index: (layer.r_values + layer.s_values) * _F32_BYTES * slots.n_slots for layer in state_layers(summary)
    }


@dataclass(frozen=True)
class _ComputeTerms:
    """Bytes of the compute buffer: what is known exactly, and activations, of which more or less are alive at once."""

    exact: int
    activations: int
    floor: int
    inputs: int

    def on_device(self) -> ByteRange:
        low = max(self.floor, self.exact + int(self.activations * _LOW))
        middle = max(self.floor + self.inputs // 2, self.exact + self.activations)
        return ByteRange(middle, low, max(self.floor + self.inputs, self.exact + int(self.activations * _HIGH)))

    def beside_devices(self) -> ByteRange:
        """The host's share when layers are on devices: the masks and the embedded tokens."""
        middle = self.exact + self.inputs
        return ByteRange(middle, self.inputs // 2, middle + self.inputs)


def _compute_range(
    summary: Summary, settings: Settings, slots: Slots, groups: list[_CacheGroup], has_flash: bool
) -> _ComputeTerms:
    architecture, n_ubatch = summary.architecture, settings.ubatch_size
    n_embd = (architecture.embedding_length if architecture else None) or 0
    n_vocab = (architecture.vocab_size if architecture else None) or 0
    heads = max(by_layer(summary.attention.head_count if summary.attention else None, layer_count(summary)))
    cells = [group.cells for group in groups]
    if len(groups) == 1 and sliding_window(summary) and groups[0].kind == "full":
        cells *= 2  # one mask with the window and one without, over one cache
    value_bytes = _mask_value_bytes(settings, has_flash)
    exact = sum(cells) * n_ubatch * value_bytes
    if not has_flash:
        exact += max(cells, default=0) * n_ubatch * heads * _F32_BYTES
    n_outputs = slots.n_slots if settings.build >= _ONE_OUTPUT_A_SLOT_SINCE else n_ubatch
    inputs = 2 * n_ubatch * n_embd * _F32_BYTES
    logits = n_vocab * n_outputs * _F32_BYTES
    return _ComputeTerms(exact, n_ubatch * _F32_BYTES * _widest_values(summary, n_embd), logits, inputs)


def _mask_value_bytes(settings: Settings, has_flash: bool) -> int:
    if not has_flash:
        return _F32_BYTES
    # Older builds made the mask in f32 and cast it.
    return _F16_BYTES if settings.build >= _MASK_IN_F16_SINCE else _F16_BYTES + _F32_BYTES


def _widest_values(summary: Summary, n_embd: int) -> int:
    """Values a token that are alive in the widest part of a layer; fitted to recorded starts."""
    architecture, moe = summary.architecture, summary.moe
    n_ff = architecture.feed_forward_length if architecture else None
    widest_ff = max(by_layer(n_ff, layer_count(summary)))
    dense = 2 * widest_ff + 8 * n_embd
    if moe is None:
        return dense
    used = max(by_layer(moe.expert_used_count, 1))
    expert_ff = max(by_layer(moe.expert_feed_forward_length, layer_count(summary))) or widest_ff
    return max(8 * n_embd, 4 * used * max(expert_ff, n_embd))


def _assemble(
    summary: Summary,
    settings: Settings,
    slots: Slots,
    placement: _Placement,
    groups: list[_CacheGroup],
    caches: list[dict[int, int]],
    states: dict[int, int],
    terms: _ComputeTerms,
) -> Estimate:
    weights = _weights(summary, placement)
    kv, recurrent = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0)
    for layer_bytes, target in [*((cache, kv) for cache in caches), (states, recurrent)]:
        for index, size in layer_bytes.items():
            target[placement.of_layer(index) if settings.kv_offload else HOST] += size
    has_layers = {placement.of_layer(index) for index in range(placement.n_layer + 1)}
    compute = {
        name: terms.on_device() if name in has_layers else ByteRange(0, 0, 0) for name in (*placement.names, HOST)
    }
    if HOST not in has_layers:
        compute[HOST] = terms.beside_devices()
    n_vocab = (summary.architecture.vocab_size if summary.architecture else None) or 0
    output = n_vocab * slots.n_slots * _F32_BYTES
    devices = tuple(
        _device(name, placement.memory[name], weights[name], kv[name], recurrent[name], compute[name], settings)
        for name in placement.names
    )
    parts = {"weights": weights[HOST], "kv": kv[HOST] + recurrent[HOST], "output": output}
    parts["compute"] = compute[HOST].bytes
    total = ByteRange(*(sum(getattr(one, name) for one in compute.values()) for name in vars(compute[HOST])))
    return Estimate(
        settings=settings,
        weights_total_bytes=summary.tensors.bytes or 0 if summary.tensors else 0,
        weights_gpu_bytes=sum(size for name, size in weights.items() if name != HOST),
        weights_host_bytes=weights[HOST],
        cache=tuple(
            CachePart(group.kind, group.cells, len(group.layers), slots.streams, sum(cache.values()))
            for group, cache in zip(groups, caches, strict=True)
        ),
        recurrent_bytes=sum(states.values()),
        output_bytes=output,
        compute=total,
        devices=devices,
        host=HostMemory(sum(parts.values()), parts | {"prompt-cache": max(settings.cache_ram_mib, 0) * _MIB}),
        slots=slots,
        host_compute=compute[HOST],
    )


def _weights(summary: Summary, placement: _Placement) -> dict[str, int]:
    weights = dict.fromkeys((*placement.names, HOST), 0)
    tensors = summary.all_tensors()
    for tensor in tensors:
        weights[placement.of_tensor(tensor)] += tensor_bytes(tensor) or 0
    output_device = placement.of_layer(placement.n_layer)
    names = {tensor.name: tensor for tensor in tensors}
    # A tied embedding stays on the host for the input, and is copied to a device for the output.
    if "output.weight" not in names and "token_embd.weight" in names and output_device != HOST:
        weights[output_device] += tensor_bytes(names["token_embd.weight"]) or 0
    return weights


def _device(
    name: str,
    memory_mib: float | None,
    weights: int,
    kv: int,
    recurrent: int,
    compute: ByteRange,
    settings: Settings,
) -> DeviceMemory:
    total = None if memory_mib is None else int(memory_mib * _MIB)
    context = None if settings.context_mib is None else int(settings.context_mib * _MIB)
    used = weights + kv + recurrent + compute.bytes + (context or 0)
    highest = used - compute.bytes + compute.high_bytes
    fits = None if total is None else highest <= total
    return DeviceMemory(name, total, weights, kv, recurrent, compute, context, used, fits)
