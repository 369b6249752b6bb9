"""What a model will need in llama-server, predicted from its header.

The rule: weights and caches are exact, from tensor sizes and cells; the compute buffer is what graph allocation gives
and cannot be computed, so it is an estimate with a range, fitted to recorded starts of small and large models. Nothing
is known of what a driver takes for itself unless it is given. A device fits if even the high end of the range does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gguf_info.compute import COMPUTE_BASIS, ByteRange, ComputeTerms, compute_terms, mask_cells, output_tokens
from gguf_info.constants import block_size_by_name
from gguf_info.context import Slots, divide_context, swa_cells
from gguf_info.errors import GGUFError
from gguf_info.layers import (
    CacheLayer,
    cache_layers,
    layer_count,
    predicting_cache_layers,
    predicting_layer_count,
    sliding_window,
    state_layers,
)
from gguf_info.model import Summary, tensor_bytes
from gguf_info.placement import Placement, block_of, device_names
from gguf_info.reader import Tensor
from gguf_info.settings import CACHE_TYPES, HOST, MOST_SLOTS, SPEC_TYPES, Settings, has_flash_attention, rollback_tokens

__all__ = [
    "CACHE_TYPES",
    "COMPUTE_BASIS",
    "HOST",
    "ByteRange",
    "CachePart",
    "DeviceMemory",
    "Estimate",
    "ExtraModel",
    "HostMemory",
    "Settings",
    "estimate",
    "predicting_context",
]

_MIB = 2**20
_F32_BYTES = 4
_BORROWING_BATCH = 32
_ROLLS_BACK = ("qwen35", "qwen35moe", "qwen4exp")
"""Recurrent architectures that keep a state for each drafted token (llama-arch.cpp)."""


@dataclass(frozen=True)
class CachePart:
    """One cache: `cells` of each of `streams`, for `layers` of the model, in bytes of K and V together."""

    kind: str
    cells: int
    layers: int
    streams: int
    bytes: int


@dataclass(frozen=True)
class DeviceMemory:
    """What one device holds.

    Attributes:
        name: Its name.
        total_bytes: The memory that is free there; None when it is not known.
        weights_bytes: The model's tensors there.
        kv_bytes: Its KV caches there.
        recurrent_bytes: Its recurrent states there.
        compute: Its compute buffer there.
        context_bytes: What the driver takes; None when it is not known.
        used_bytes: All of it and what is loaded beside the model, with the middle of the compute ranges.
        used_high_bytes: The same with their high ends.
        fits: Whether that is within the free memory.
    """

    name: str
    total_bytes: int | None
    weights_bytes: int
    kv_bytes: int
    recurrent_bytes: int
    compute: ByteRange
    context_bytes: int | None
    used_bytes: int
    used_high_bytes: int
    fits: bool | None


@dataclass(frozen=True)
class HostMemory:
    """What the host holds.

    Attributes:
        used_bytes: After the start: weights, caches, output, compute buffer, and what is loaded beside the model.
        parts: By kind. `prompt-cache` and `checkpoints` are limits that fill later and are no part of `used_bytes`;
            a prompt cache without a limit (`--cache-ram -1`) is None.
    """

    used_bytes: int
    parts: Mapping[str, int | None]


@dataclass(frozen=True)
class ExtraModel:
    """What a model that is loaded beside the main one takes on one device, or on the host.

    Attributes:
        role: `draft`, `mtp` or `mmproj`.
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
        weights_total_bytes: The tensors that are loaded: all but those of layers that only predict further tokens.
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
        checkpoint_bytes: One context checkpoint of one slot at most; 0 where the server makes none.
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
    checkpoint_bytes: int = 0
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
    applied, slots = _applied(summary, settings or Settings())
    placement = Placement(summary, applied)
    groups = _cache_groups(summary, applied, slots, cache_layers(summary))
    caches = [_cache_bytes(group, applied, slots, summary) for group in groups]
    states = _state_bytes(summary, applied)
    states_of_all = {index: size * slots.n_slots for index, size in states.items()}
    terms = _terms(summary, applied, slots, groups)
    checkpoint = _checkpoint_bytes(summary, applied, slots, groups, caches) + _one_state(states, applied, summary)
    return _assemble(summary, applied, slots, placement, groups, caches, states_of_all, terms, checkpoint)


def predicting_context(summary: Summary, settings: Settings) -> list[ExtraModel]:
    """What layers that predict further tokens take: their weights, and a context of their own.

    Args:
        summary: The file that has the layers, the model's own or another.
        settings: The start, with the context's own cache types.

    Raises:
        GGUFError: The file has no such layers.
    """
    applied, slots = _applied(summary, settings)
    placement = Placement(summary, applied)
    groups = _cache_groups(summary, applied, slots, predicting_cache_layers(summary))
    names = (*placement.names, HOST)
    weights, kv = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for tensor in _tensors_of_predicting_layers(summary):
        weights[placement.of_tensor(tensor)] += tensor_bytes(tensor) or 0
    for group in groups:
        for index, size in _cache_bytes(group, applied, slots, summary).items():
            kv[placement.of_layer(index) if applied.kv_offload else HOST] += size
    kv[HOST] += _output_bytes(summary, slots)
    terms = _terms(summary, applied, slots, groups)
    compute = _compute_by_device(summary, applied, slots, placement, terms, first_layer=placement.n_layer - 1)
    path = summary.file.path
    return [ExtraModel("mtp", path, name, weights[name], kv[name], compute[name]) for name in names]


def _applied(summary: Summary, settings: Settings) -> tuple[Settings, Slots]:
    """The settings as the server applies them, and the context that follows from them."""
    _require_valid(summary, settings)
    slots = divide_context(
        ctx_size=settings.ctx_size,
        parallel=settings.parallel,
        kv_unified=settings.kv_unified,
        n_ctx_train=summary.architecture.context_length if summary.architecture else None,
        flash_attn=has_flash_attention(settings),
        build=settings.build,
    )
    if not slots.cells:
        expected, found = "--ctx-size of a token or more a slot", str(settings.ctx_size)
        raise GGUFError(summary.file.path, None, expected=expected, found=found)
    n_batch = min(settings.batch_size, slots.n_ctx)
    n_ubatch = min(settings.ubatch_size, n_batch)
    if settings.embedding:  # the server then takes a batch in one go
        n_batch = n_ubatch
    return replace(settings, ctx_size=slots.n_ctx, batch_size=n_batch, ubatch_size=n_ubatch), slots


@dataclass(frozen=True)
class _CacheGroup:
    """Layers whose cache has the same kind and number of cells."""

    kind: str
    cells: int
    layers: tuple[CacheLayer, ...]


def _require_valid(summary: Summary, settings: Settings) -> None:
    def refuse(expected: str, found: str, hint: str = "") -> GGUFError:
        return GGUFError(summary.file.path, None, expected=expected, found=found, hint=hint)

    for flag, name in (("-k", settings.cache_type_k), ("-v", settings.cache_type_v)):
        if name not in CACHE_TYPES:
            raise refuse(f"--cache-type{flag} out of {', '.join(CACHE_TYPES)}", name)
    if settings.parallel is not None and settings.parallel > MOST_SLOTS:
        raise refuse(f"--parallel of at most {MOST_SLOTS}", str(settings.parallel))
    for name, size in _sizes(summary):
        if size < 0:
            raise refuse(f"{name} of 0 or more", str(size), "is the file a model's?")
    is_quantized = settings.cache_type_v not in ("f32", "f16", "bf16")
    if is_quantized and not has_flash_attention(settings):
        raise refuse("flash attention for a quantized V cache", "none", "use --flash-attn on, or --cache-type-v f16")
    if HOST in settings.memory_mib:
        raise refuse("--memory of a device", HOST, "the host's memory is not judged")
    for name in settings.spec_type:
        if name not in SPEC_TYPES:
            raise refuse(f"--spec-type out of {', '.join(SPEC_TYPES)}", name)
    names = {HOST, *device_names(settings)}
    for _, name in settings.override_tensor:
        if name not in names:
            raise refuse(f"--override-tensor to one of {', '.join(sorted(names))}", name)
    if summary.tensors is None or summary.tensors.bytes is None:
        raise refuse("tensors of known types", "none, or types that the installed gguf package does not know")
    if summary.file.missing_shards:
        raise refuse("all parts of the model", f"{len(summary.file.missing_shards)} missing")


def _sizes(summary: Summary) -> Iterator[tuple[str, int]]:
    """The sizes in the file that an estimate multiplies, by their names."""
    for section in (summary.architecture, summary.attention, summary.moe):
        for name, value in vars(section).items() if section else ():
            for size in value if isinstance(value, tuple) else (value,):
                if isinstance(size, int):
                    yield name, size


def _cache_groups(
    summary: Summary, settings: Settings, slots: Slots, layers: Sequence[CacheLayer]
) -> list[_CacheGroup]:
    window_cells = _window_cells(summary, settings, slots)
    if window_cells is None:
        return [_CacheGroup("full", slots.cells, tuple(layers))] if layers else []
    cells = {"swa": slots.cells if settings.swa_full else window_cells}
    kinds = dict.fromkeys(layer.kind for layer in sorted(layers, key=lambda layer: layer.kind))
    return [
        _CacheGroup(kind, cells.get(kind, slots.cells), tuple(layer for layer in layers if layer.kind == kind))
        for kind in kinds
    ]


def _window_cells(summary: Summary, settings: Settings, slots: Slots) -> int | None:
    return swa_cells(
        slots,
        window=sliding_window(summary),
        n_batch=settings.batch_size,
        n_ubatch=settings.ubatch_size,
        flash_attn=has_flash_attention(settings),
        build=settings.build,
    )


def _terms(summary: Summary, settings: Settings, slots: Slots, groups: Sequence[_CacheGroup]) -> ComputeTerms:
    cells = mask_cells(summary, [(group.kind, group.cells) for group in groups])
    return compute_terms(summary, settings, slots, cells)


def _cache_bytes(group: _CacheGroup, settings: Settings, slots: Slots, summary: Summary) -> dict[int, int]:
    """Bytes of a cache by layer."""
    # Without flash attention V is kept transposed, with rows as wide as the widest layer's.
    has_flash = has_flash_attention(settings)
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


def _state_bytes(summary: Summary, settings: Settings) -> dict[int, int]:
    """Bytes of one slot's recurrent states by layer."""
    return {
        layer.index: (layer.r_values + layer.s_values) * _F32_BYTES * _states_a_slot(summary, settings)
        for layer in state_layers(summary)
    }


def _states_a_slot(summary: Summary, settings: Settings) -> int:
    return 1 + (rollback_tokens(settings) if summary.general.architecture in _ROLLS_BACK else 0)


def _one_state(states: Mapping[int, int], settings: Settings, summary: Summary) -> int:
    return sum(states.values()) // _states_a_slot(summary, settings)


def _checkpoint_bytes(
    summary: Summary, settings: Settings, slots: Slots, groups: Sequence[_CacheGroup], caches: Sequence[dict[int, int]]
) -> int:
    """What a context checkpoint keeps of windows: all cells that one slot can fill of their cache."""
    if settings.swa_full:
        return 0
    cells = _window_cells(summary, settings, replace(slots, n_slots=1))
    return sum(
        sum(cache.values()) // (group.cells * slots.streams) * min(cells or 0, group.cells)
        for group, cache in zip(groups, caches, strict=True)
        if group.kind == "swa"
    )


def _compute_by_device(
    summary: Summary,
    settings: Settings,
    slots: Slots,
    placement: Placement,
    terms: ComputeTerms,
    first_layer: int = 0,
) -> dict[str, ByteRange]:
    """Compute buffers of a context whose layers are those from `first_layer` on, and the output."""
    has_layers = {placement.of_layer(index) for index in range(first_layer, placement.n_layer + 1)}
    output, copies = placement.of_layer(placement.n_layer), placement.pipeline_copies
    borrowed = _borrowed_bytes(summary, settings, slots, placement, first_layer)
    compute = dict.fromkeys((*placement.names, HOST), ByteRange(0, 0, 0))
    for place, name in enumerate(placement.names):
        if name in has_layers or (place == 0 and borrowed):
            of_the_host = borrowed if place == 0 else 0
            has_output = name == output or bool(of_the_host)
            compute[name] = terms.of_layers(has_output=has_output, copies=copies, borrowed=of_the_host)
    beside = terms.beside_devices(copies)
    compute[HOST] = beside
    if HOST in has_layers:
        alone = terms.of_layers(has_output=output == HOST)
        # A device that borrows the host's weights computes most of what the host would.
        compute[HOST] = ByteRange(beside.bytes, beside.low_bytes, alone.high_bytes) if borrowed else alone
    return compute


def _borrowed_bytes(summary: Summary, settings: Settings, slots: Slots, placement: Placement, first_layer: int) -> int:
    """The largest weight on the host that the first device multiplies with, copied into its compute buffer; 0 if none.

    That is so for batches of 32 tokens or more (ggml's backends), which the output has only where all tokens have
    logits.
    """
    has_device = bool(settings.memory_mib) or settings.n_gpu_layers != 0
    if not has_device or not settings.op_offload:
        return 0
    names = {"output.weight", "token_embd.weight"} if output_tokens(settings, slots) >= _BORROWING_BATCH else set()
    if placement.of_layer(placement.n_layer) != HOST:
        names = set()
    return max(
        (
            tensor_bytes(tensor) or 0
            for tensor in summary.all_tensors()
            if (tensor.name in names or _is_from(tensor, first_layer))
            and len(tensor.shape) > 1
            and placement.of_tensor(tensor) == HOST
        ),
        default=0,
    )


def _is_from(tensor: Tensor, first_layer: int) -> bool:
    block = block_of(tensor)
    return block is not None and block >= first_layer


def _output_bytes(summary: Summary, slots: Slots) -> int:
    n_vocab = (summary.architecture.vocab_size if summary.architecture else None) or 0
    return n_vocab * slots.n_slots * _F32_BYTES


def _assemble(
    summary: Summary,
    settings: Settings,
    slots: Slots,
    placement: Placement,
    groups: list[_CacheGroup],
    caches: list[dict[int, int]],
    states: dict[int, int],
    terms: ComputeTerms,
    checkpoint_bytes: int,
) -> Estimate:
    weights = _weights(summary, placement)
    kv, recurrent = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0)
    for layer_bytes, target in [*((cache, kv) for cache in caches), (states, recurrent)]:
        for index, size in layer_bytes.items():
            target[placement.of_layer(index) if settings.kv_offload else HOST] += size
    compute = _compute_by_device(summary, settings, slots, placement, terms)
    output = _output_bytes(summary, slots)
    devices = tuple(
        _device(name, placement.memory[name], weights[name], kv[name], recurrent[name], compute[name], settings)
        for name in placement.names
    )
    parts: dict[str, int | None] = {"weights": weights[HOST], "kv": kv[HOST] + recurrent[HOST], "output": output}
    used = weights[HOST] + kv[HOST] + recurrent[HOST] + output + compute[HOST].bytes
    parts["prompt-cache"] = None if settings.cache_ram_mib < 0 else settings.cache_ram_mib * _MIB
    parts["checkpoints"] = checkpoint_bytes * settings.ctx_checkpoints * slots.n_slots
    total = ByteRange(*(sum(getattr(one, name) for one in compute.values()) for name in vars(compute[HOST])))
    return Estimate(
        settings=settings,
        weights_total_bytes=sum(tensor_bytes(tensor) or 0 for tensor in _loaded_tensors(summary)),
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
        host=HostMemory(used, parts),
        slots=slots,
        host_compute=compute[HOST],
        checkpoint_bytes=checkpoint_bytes,
    )


def _tensors_of_predicting_layers(summary: Summary) -> list[Tensor]:
    first = layer_count(summary) - predicting_layer_count(summary)
    return [tensor for tensor in summary.all_tensors() if _is_from(tensor, first)]


def _loaded_tensors(summary: Summary) -> list[Tensor]:
    left_out = {tensor.name for tensor in _tensors_of_predicting_layers(summary)}
    return [tensor for tensor in summary.all_tensors() if tensor.name not in left_out]


def _weights(summary: Summary, placement: Placement) -> dict[str, int]:
    weights = dict.fromkeys((*placement.names, HOST), 0)
    tensors = _loaded_tensors(summary)
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
    return DeviceMemory(name, total, weights, kv, recurrent, compute, context, used, highest, fits)
