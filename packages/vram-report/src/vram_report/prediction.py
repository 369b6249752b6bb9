"""A log beside its model's file: what the log lacks is taken from the file, and sizes are predicted and compared.

The rule: this module alone knows gguf-info, which is installed by the extra `model` and imported when it is needed.
A predicted size agrees when it equals the printed one to the printed digits; a compute buffer agrees when it lies in
the prediction's range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vram_report.document import Finding, Model, Prediction, Run
from vram_report.errors import ModelNotRead

if TYPE_CHECKING:
    from gguf_info import Estimate, Settings, Summary

__all__ = ["read_model", "with_model"]

MIB = 2**20
PRINTED_STEP_MIB = 0.01
FLASH: dict[str, Literal["on", "off"]] = {"enabled": "on", "disabled": "off", "on": "on", "off": "off"}
# What must be the same in the log and in the file, if both are of one model; the number of layers is compared apart.
IDENTITY = ("architecture", "n_embd", "n_ctx_train", "n_expert")

_PREDICTING_LAYERS_APART_SINCE = 9523
"""From this build on, `n_layer` leaves out the layers that only predict further tokens (nextn, MTP)."""


def read_model(path: str | Path) -> Summary:
    """Read the header of a GGUF file.

    Raises:
        ModelNotRead: If it cannot be read, or gguf-info is not installed.
    """
    try:
        import gguf_info
    except ImportError as error:
        raise ModelNotRead("--model needs gguf-info", "pip install 'vram-report[model]'") from error
    try:
        return gguf_info.read_summary(Path(path))
    except (OSError, gguf_info.GGUFError) as error:
        raise ModelNotRead(str(error), getattr(error, "hint", "") or "Give the model's GGUF file.") from error


def with_model(run: Run, summary: Summary, *, build: int | None = None) -> Run:
    """The run with the model's unknown values filled in from its file, and with predictions beside what was observed.

    A file of another model adds nothing but a finding that says so.

    Args:
        run: A run of `parse` or `read_log`.
        summary: The header of the model's file, from `read_model`.
        build: llama.cpp's build number, for a log that does not say it. None takes the newest build whose rules
            gguf-info knows, and a finding says so. A build that the log does say goes before it.

    Raises:
        ModelNotRead: If the file's model cannot be predicted.
    """
    build = run.build.number or build
    known = _model(summary, build)
    differing = list(_differing(run.model, known, summary))
    if differing:
        message = f"The file is not the model of this log ({'; '.join(differing)}), so nothing is taken from it."
        return replace(run, findings=[*run.findings, Finding("other-model", "warning", message, None)])
    run = replace(run, model=_filled(run.model, known))
    predictions = _predictions(run, summary, build)
    assumed = [_assumed_build()] if predictions and build is None else []
    return replace(run, predictions=predictions, findings=[*run.findings, *assumed, *_differences(predictions)])


def _differing(logged: Model, known: Model, summary: Summary) -> Iterator[str]:
    """What tells the log's model from the file's, in words."""
    for name in IDENTITY:
        in_log, in_file = getattr(logged, name), getattr(known, name)
        if in_log is not None and in_file is not None and in_log != in_file:
            yield f"{name}: {in_log} in the log, {in_file} in the file"
    layers = _layer_counts(summary)
    if layers and logged.n_layer is not None and logged.n_layer not in layers:
        yield f"n_layer: {logged.n_layer} in the log, {' or '.join(map(str, layers))} in the file"


def _layer_counts(summary: Summary) -> list[int]:
    """Both ways to count the file's layers: without and with those that only predict further tokens."""
    architecture = summary.architecture
    if architecture is None or architecture.block_count is None:
        return []
    n_predicting = _whole(architecture.other.get("nextn_predict_layers")) or 0
    return sorted({architecture.block_count - n_predicting, architecture.block_count})


def _assumed_build() -> Finding:
    import gguf_info

    message = (
        f"The log does not say its build (a server without build information prints b0), so sizes are predicted by "
        f"the rules of build {gguf_info.Settings.build}, the newest that is known. If yours is older, give it with "
        f"--build; the embedded server's is in its wheel's version (xllamacpp 2026.10.11549 is build 11549)."
    )
    return Finding("assumed-build", "info", message, None)


def _filled(model: Model, known: Model) -> Model:
    unknown = (field.name for field in fields(model) if getattr(model, field.name) is None)
    return replace(model, **{name: getattr(known, name) for name in unknown})


def _model(summary: Summary, build: int | None) -> Model:
    layers = _layer_counts(summary)
    counts_all = build is not None and build < _PREDICTING_LAYERS_APART_SINCE
    architecture, attention, moe, rope = summary.architecture, summary.attention, summary.moe, summary.rope
    tensors, tokenizer = summary.tensors, summary.tokenizer
    size_bytes = tensors.bytes if tensors else None
    return Model(
        path=summary.file.path,
        architecture=summary.general.architecture,
        name=summary.general.name,
        file_type=summary.general.file_type,
        parameters=tensors.parameters if tensors else None,
        size_mib=round(size_bytes / MIB, 2) if size_bytes is not None else None,
        bits_per_weight=round(8 * size_bytes / tensors.parameters, 2) if tensors and size_bytes is not None else None,
        n_ctx_train=architecture.context_length if architecture else None,
        n_layer=layers[-1 if counts_all else 0] if layers else None,
        n_embd=architecture.embedding_length if architecture else None,
        n_head=_numbers(attention.head_count) if attention else None,
        n_head_kv=_numbers(attention.head_count_kv) if attention else None,
        n_embd_head_k=attention.key_length if attention else None,
        n_embd_head_v=attention.value_length if attention else None,
        n_swa=attention.sliding_window if attention else None,
        n_ff=_numbers(architecture.feed_forward_length) if architecture else None,
        n_vocab=(architecture.vocab_size if architecture else None) or (tokenizer.tokens if tokenizer else None),
        n_expert=moe.expert_count if moe else None,
        n_expert_used=_whole(moe.expert_used_count) if moe else None,
        expert_used_percent=moe.expert_used_percent if moe else None,
        rope_scaling=rope.scaling_type if rope else None,
        rope_scaling_factor=rope.scaling_factor if rope else None,
        rope_freq_base=rope.freq_base if rope else None,
        n_ctx_orig=rope.original_context_length if rope else None,
    )


def _numbers(value: object) -> int | list[int] | None:
    if isinstance(value, int):
        return value
    return [int(number) for number in value] if isinstance(value, (list, tuple)) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _predictions(run: Run, summary: Summary, build: int | None) -> list[Prediction]:
    """The sizes of this start by the file, each beside what the log printed; none when the log says no context."""
    import gguf_info

    settings = _settings(run, build)
    if settings is None:
        return []
    try:
        predicted = gguf_info.estimate(summary, settings)
        if _runs_predicting_layers(run, summary):
            predicted = gguf_info.with_companions(predicted, predicting=gguf_info.PredictingLayers(summary))
    except gguf_info.GGUFError as error:
        raise ModelNotRead(str(error), error.hint) from error
    return list(_compared(run, predicted))


def _runs_predicting_layers(run: Run, summary: Summary) -> bool:
    """Whether the model's own predicting layers are loaded; their weights lie in the buffers of the others."""
    has_them = len(_layer_counts(summary)) > 1
    drafts = any(buffer.role == "draft" for buffer in run.buffers)
    return has_them and "draft-mtp" in run.context.spec_types and not drafts


def _settings(run: Run, build: int | None) -> Settings | None:
    """The start as the log tells it."""
    import gguf_info

    context, cache = run.context, run.kv_cache
    if context.n_ctx is None:
        return None
    gpus = [device.name for device in run.devices if device.kind in ("gpu", "igpu", "accel", "rpc")]
    cells = {part.kind: part.cells for part in cache.parts}
    usual = gguf_info.Settings
    n_slots, n_outputs = context.n_slots or 1, context.n_outputs_max or 0
    return gguf_info.Settings(
        ctx_size=context.n_ctx,
        parallel=n_slots,
        kv_unified=context.kv_unified,
        cache_type_k=cache.type_k or usual.cache_type_k,
        cache_type_v=cache.type_v or usual.cache_type_v,
        batch_size=context.n_batch or usual.batch_size,
        ubatch_size=context.n_ubatch or usual.ubatch_size,
        flash_attn=FLASH.get(context.flash_attn or "", "auto"),
        n_gpu_layers=run.offload.layers if gpus else 0,
        swa_full="swa" in cells and cells["swa"] == cells.get("non-swa"),
        spec_type=tuple(context.spec_types),
        # A slot computes the token before its draft and each drafted one.
        spec_draft_n_max=max(n_outputs // n_slots - 1, 1) if n_outputs else usual.spec_draft_n_max,
        embedding=n_outputs > n_slots and n_outputs == context.n_batch,
        memory_mib=dict.fromkeys(gpus),
        build=build or usual.build,
    )


def _compared(run: Run, predicted: Estimate) -> Iterator[Prediction]:
    predicting_bytes = sum(extra.weights_bytes for extra in predicted.extra_models)
    weights_bytes = predicted.weights_gpu_bytes + predicted.weights_host_bytes + predicting_bytes
    yield _exact("weights", weights_bytes, *_printed(run, "weights"))
    yield _exact("kv", predicted.kv_bytes, *_printed(run, "kv"))
    if predicted.recurrent_bytes:
        yield _exact("recurrent", predicted.recurrent_bytes, *_printed(run, "recurrent"))
    yield _exact("output", predicted.output_bytes, *_printed(run, "output"))
    observed, _ = _printed(run, "compute")
    low, high = predicted.compute.low_bytes / MIB, predicted.compute.high_bytes / MIB
    agrees = None if observed is None else low <= observed <= high
    yield Prediction("compute", _mib(predicted.compute.bytes), round(low, 2), round(high, 2), observed, agrees)


def _exact(quantity: str, n_bytes: int, observed: float | None, buffers: int) -> Prediction:
    mib = _mib(n_bytes)
    agrees = None if observed is None else abs(mib - observed) <= PRINTED_STEP_MIB * (buffers + 1) / 2
    return Prediction(quantity, mib, mib, mib, observed, agrees)


def _printed(run: Run, kind: str) -> tuple[float | None, int]:
    """MiB of the model's buffers of a kind together, and how many there are; copies of repacked weights left out."""
    found = [
        buffer.mib
        for buffer in run.buffers
        if buffer.kind == kind and buffer.role == "model" and not buffer.buffer.endswith("_REPACK")
    ]
    return (round(sum(found), 2), len(found)) if found else (None, 0)


def _mib(n_bytes: int) -> float:
    return round(n_bytes / MIB, 2)


def _differences(predictions: list[Prediction]) -> Iterator[Finding]:
    for item in predictions:
        if item.agrees is not False or item.observed_mib is None:
            continue
        exact = item.low_mib == item.high_mib
        expected = f"{item.predicted_mib:,.2f} MiB" if exact else f"{item.low_mib:,.2f} to {item.high_mib:,.2f} MiB"
        message = (
            f"{item.quantity}: the server took {item.observed_mib:,.2f} MiB, the model's file predicts {expected}. "
        )
        message += "The log may be of another file or build, or of flags that it does not print."
        yield Finding("prediction-differs", "info", message, None)
