"""What is loaded beside the model: a draft model, layers that predict further tokens, and a multimodal projector.

A draft model is a start of its own with the context, slots and sharing of the model and its own cache types and
layers on devices; layers that predict further tokens (MTP) get a context of their own with the draft's cache types,
whether they lie in the model's file or in another (llama.cpp's common/speculative.cpp, build 11549; checked against
recorded starts). A projector's weights lie on the first device, or where its flags say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gguf_info.errors import GGUFError
from gguf_info.memory import (
    HOST,
    DeviceMemory,
    Estimate,
    ExtraModel,
    HostMemory,
    Settings,
    estimate,
    predicting_context,
)
from gguf_info.model import Summary
from gguf_info.projector import projector_compute

__all__ = ["DraftModel", "PredictingLayers", "Projector", "with_companions"]


@dataclass(frozen=True)
class DraftModel:
    """A draft model and how it is started, by llama-server's flags.

    Attributes:
        summary: The draft model's file (`--model-draft`).
        cache_type_k: `--cache-type-k-draft`.
        cache_type_v: `--cache-type-v-draft`.
        n_gpu_layers: `--n-gpu-layers-draft`; None is all of them.
        devices: `--device-draft`; empty is the model's, `("none",)` is the host.
        n_cpu_moe: `--n-cpu-moe-draft`.
        override_tensor: `--override-tensor-draft`.
    """

    summary: Summary
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    n_gpu_layers: int | None = None
    devices: tuple[str, ...] = ()
    n_cpu_moe: int = 0
    override_tensor: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PredictingLayers:
    """Layers that predict further tokens (`--spec-type draft-mtp`).

    Attributes:
        summary: The file that has them: the model's own, or the one that `--model-draft` names.
        is_own: Whether it is the model's own file, whose layers lie where the model's flags put them.
        cache_type_k: `--cache-type-k-draft`.
        cache_type_v: `--cache-type-v-draft`.
        n_gpu_layers: `--n-gpu-layers-draft`, for another file.
        devices: `--device-draft`, for another file.
    """

    summary: Summary
    is_own: bool = True
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    n_gpu_layers: int | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Projector:
    """A multimodal projector.

    Attributes:
        summary: The projector's file (`--mmproj`).
        offload: Off for `--no-mmproj-offload`.
        device: `--mmproj-device`; None is the first device.
    """

    summary: Summary
    offload: bool = True
    device: str | None = None


def with_companions(
    prediction: Estimate,
    *,
    draft: DraftModel | None = None,
    projector: Projector | None = None,
    predicting: PredictingLayers | None = None,
) -> Estimate:
    """A prediction with what else is loaded counted on each device, and whether it all fits.

    Args:
        prediction: The model's own, from `estimate`.
        draft: A draft model.
        projector: A multimodal projector.
        predicting: Layers that predict further tokens.

    Raises:
        GGUFError: A file is not what it is given as, a device is not among the model's, or the draft model cannot be
            estimated.
    """
    extra: list[ExtraModel] = []
    if draft is not None:
        extra += _draft(prediction, draft)
    if predicting is not None:
        extra += _predicting(prediction, predicting)
    if projector is not None:
        extra.append(_projector(prediction, projector))
    devices = tuple(_with(device, [one for one in extra if one.device == device.name]) for device in prediction.devices)
    on_host = sum(one.used_bytes for one in extra if one.device == HOST)
    host = HostMemory(prediction.host.used_bytes + on_host, prediction.host.parts)
    return replace(prediction, devices=devices, host=host, extra_models=tuple(extra))


def _draft(prediction: Estimate, draft: DraftModel) -> list[ExtraModel]:
    settings = _beside(
        prediction,
        draft,
        n_cpu_moe=draft.n_cpu_moe,
        override_tensor=draft.override_tensor,
    )
    own = estimate(draft.summary, settings)
    path = draft.summary.file.path
    on_devices = [
        ExtraModel("draft", path, one.name, one.weights_bytes, one.kv_bytes + one.recurrent_bytes, one.compute)
        for one in own.devices
    ]
    parts = own.host.parts
    context = (parts["kv"] or 0) + (parts["output"] or 0)
    host = ExtraModel("draft", path, HOST, parts["weights"] or 0, context, own.host_compute)
    return [one for one in (*on_devices, host) if one.used_bytes]


def _predicting(prediction: Estimate, predicting: PredictingLayers) -> list[ExtraModel]:
    settings = replace(
        _as_started(prediction.settings, prediction),
        cache_type_k=predicting.cache_type_k,
        cache_type_v=predicting.cache_type_v,
    )
    if not predicting.is_own:
        settings = _beside(prediction, predicting)
    found = predicting_context(predicting.summary, settings)
    if not predicting.is_own:
        found = _with_all_weights(found, predicting.summary, settings)
    return [one for one in found if one.used_bytes]


def _with_all_weights(found: list[ExtraModel], summary: Summary, settings: Settings) -> list[ExtraModel]:
    """A file of its own is loaded whole: the embedding and the output beside the layers."""
    whole = estimate(summary, settings)
    beside: Mapping[str, int] = {
        **{device.name: device.weights_bytes for device in whole.devices},
        HOST: whole.weights_host_bytes,
    }
    return [replace(one, weights_bytes=one.weights_bytes + beside[one.device]) for one in found]


def _as_started(settings: Settings, prediction: Estimate) -> Settings:
    slots = prediction.slots
    return replace(settings, ctx_size=slots.n_ctx, parallel=slots.n_slots, kv_unified=slots.kv_unified, spec_type=())


def _beside(
    prediction: Estimate,
    draft: DraftModel | PredictingLayers,
    *,
    n_cpu_moe: int = 0,
    override_tensor: tuple[tuple[str, str], ...] = (),
) -> Settings:
    """How a second file is started beside the model: with its context, and with flags of its own."""
    settings = prediction.settings
    names = [device.name for device in prediction.devices]
    unknown = [name for name in draft.devices if name not in (*names, "none")]
    if unknown:
        raise GGUFError(
            draft.summary.file.path,
            None,
            expected=f"--device-draft out of {', '.join([*names, 'none'])}",
            found=unknown[0],
            hint="name the devices as --memory does",
        )
    chosen = {name: settings.memory_mib.get(name) for name in names if name in draft.devices}
    return replace(
        _as_started(settings, prediction),
        cache_type_k=draft.cache_type_k,
        cache_type_v=draft.cache_type_v,
        n_gpu_layers=0 if "none" in draft.devices else draft.n_gpu_layers,
        op_offload=settings.op_offload and "none" not in draft.devices,
        n_cpu_moe=n_cpu_moe,
        override_tensor=override_tensor,
        memory_mib=chosen or settings.memory_mib,
        tensor_split=() if chosen else settings.tensor_split,
        main_gpu=0 if chosen else settings.main_gpu,
    )


def _projector(prediction: Estimate, projector: Projector) -> ExtraModel:
    summary = projector.summary
    if summary.general.architecture != "clip":
        found = f"one of a model of architecture {summary.general.architecture!r}"
        raise GGUFError(summary.file.path, None, expected="a projector's file", found=found, hint="check --mmproj")
    if summary.tensors is None or summary.tensors.bytes is None:
        raise GGUFError(summary.file.path, None, expected="tensors of known types", found="none")
    names = [device.name for device in prediction.devices]
    if projector.device is not None and projector.device not in names:
        expected = f"--mmproj-device out of {', '.join(names)}"
        raise GGUFError(summary.file.path, None, expected=expected, found=projector.device)
    device = (projector.device or names[0]) if projector.offload else HOST
    compute = projector_compute(summary, prediction.settings)
    return ExtraModel("mmproj", summary.file.path, device, summary.tensors.bytes, 0, compute)


def _with(device: DeviceMemory, extra: list[ExtraModel]) -> DeviceMemory:
    more = sum(one.used_bytes for one in extra)
    slack = sum(one.compute.high_bytes - one.compute.bytes for one in extra if one.compute is not None)
    highest = device.used_high_bytes + more + slack
    fits = None if device.total_bytes is None else highest <= device.total_bytes
    return replace(device, used_bytes=device.used_bytes + more, used_high_bytes=highest, fits=fits)
