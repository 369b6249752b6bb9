"""What is loaded beside the model: a draft model for speculative decoding, and a multimodal projector.

A draft model is a start of its own with the context, slots and sharing of the model and its own cache types and
layers on devices (llama.cpp's common/speculative.cpp, build 11549; checked against a recorded start). A projector's
weights lie on the first device, or on the host with --no-mmproj-offload; its compute buffer depends on the image and
is not predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gguf_info.errors import GGUFError
from gguf_info.memory import HOST, DeviceMemory, Estimate, ExtraModel, HostMemory, estimate
from gguf_info.model import Summary

__all__ = ["DraftModel", "Projector", "with_companions"]


@dataclass(frozen=True)
class DraftModel:
    """A draft model and how it is started, by llama-server's flags.

    Attributes:
        summary: The draft model's file (`--model-draft`).
        cache_type_k: `--cache-type-k-draft`.
        cache_type_v: `--cache-type-v-draft`.
        n_gpu_layers: `--n-gpu-layers-draft`; None is all of them.
    """

    summary: Summary
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    n_gpu_layers: int | None = None


@dataclass(frozen=True)
class Projector:
    """A multimodal projector.

    Attributes:
        summary: The projector's file (`--mmproj`).
        offload: Off for `--no-mmproj-offload`.
    """

    summary: Summary
    offload: bool = True


def with_companions(
    prediction: Estimate, *, draft: DraftModel | None = None, projector: Projector | None = None
) -> Estimate:
    """A prediction with what else is loaded counted on each device, and whether it all fits.

    Args:
        prediction: The model's own, from `estimate`.
        draft: A draft model.
        projector: A multimodal projector.

    Raises:
        GGUFError: A file is not what it is given as, or the draft model cannot be estimated.
    """
    extra: list[ExtraModel] = []
    if draft is not None:
        extra += _draft(prediction, draft)
    if projector is not None:
        extra.append(_projector(prediction, projector))
    devices = tuple(_with(device, [one for one in extra if one.device == device.name]) for device in prediction.devices)
    on_host = sum(one.used_bytes for one in extra if one.device == HOST)
    host = prediction.host
    if on_host:
        host = HostMemory(host.used_bytes + on_host, {**host.parts, "extra-models": on_host})
    return replace(prediction, devices=devices, host=host, extra_models=tuple(extra))


def _draft(prediction: Estimate, draft: DraftModel) -> list[ExtraModel]:
    settings, slots = prediction.settings, prediction.slots
    own = estimate(
        draft.summary,
        replace(
            settings,
            ctx_size=slots.n_ctx,
            parallel=slots.n_slots,
            kv_unified=slots.kv_unified,
            cache_type_k=draft.cache_type_k,
            cache_type_v=draft.cache_type_v,
            n_gpu_layers=draft.n_gpu_layers,
            n_cpu_moe=0,
            override_tensor=(),
        ),
    )
    path = draft.summary.file.path
    on_devices = [
        ExtraModel("draft", path, one.name, one.weights_bytes, one.kv_bytes + one.recurrent_bytes, one.compute)
        for one in own.devices
    ]
    parts = own.host.parts
    host = ExtraModel("draft", path, HOST, parts["weights"], parts["kv"] + parts["output"], own.host_compute)
    return [one for one in (*on_devices, host) if one.used_bytes]


def _projector(prediction: Estimate, projector: Projector) -> ExtraModel:
    summary = projector.summary
    if summary.general.architecture != "clip":
        found = f"one of a model of architecture {summary.general.architecture!r}"
        raise GGUFError(summary.file.path, None, expected="a projector's file", found=found, hint="check --mmproj")
    if summary.tensors is None or summary.tensors.bytes is None:
        raise GGUFError(summary.file.path, None, expected="tensors of known types", found="none")
    device = prediction.devices[0].name if projector.offload and prediction.devices else HOST
    return ExtraModel("mmproj", summary.file.path, device, summary.tensors.bytes, 0, None)


def _with(device: DeviceMemory, extra: list[ExtraModel]) -> DeviceMemory:
    used = device.used_bytes + sum(one.used_bytes for one in extra)
    slack = device.compute.high_bytes - device.compute.bytes
    slack += sum(one.compute.high_bytes - one.compute.bytes for one in extra if one.compute is not None)
    fits = None if device.total_bytes is None else used + slack <= device.total_bytes
    return replace(device, used_bytes=used, fits=fits)
