"""The report as data: what a log says, field by field.

Every class is frozen and mirrors one object of the JSON document, so the document is the dataclasses and nothing
else. `None` is "the log does not say"; zero is a number that the log printed. Sizes are MiB (2^20 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Buffer",
    "Build",
    "Capacity",
    "Context",
    "Device",
    "Failure",
    "Finding",
    "FullReprocessing",
    "KVCache",
    "KVPart",
    "LogReport",
    "Model",
    "Offload",
    "Prediction",
    "Requests",
    "Run",
    "Source",
]


@dataclass(frozen=True)
class Source:
    """Where a log came from and how much of it was read."""

    path: str
    lines: int
    bytes: int


@dataclass(frozen=True)
class Build:
    """The server's build; `flavor` is `llama.cpp`, `ik_llama.cpp` or `other`."""

    number: int | None
    commit: str | None
    flavor: str


@dataclass(frozen=True)
class Failure:
    """Why a start did not come up: the allocation, file or setting that failed."""

    kind: str
    message: str
    line: int
    device: str | None
    requested_mib: float | None


@dataclass(frozen=True)
class Device:
    """One device and what it holds; `used_basis` says how the used figure is known."""

    name: str
    description: str | None
    kind: str
    total_mib: float | None
    free_mib: float | None
    weights_mib: float | None
    kv_mib: float | None
    recurrent_mib: float | None
    compute_mib: float | None
    output_mib: float | None
    other_mib: float | None
    used_mib: float | None
    used_basis: str | None
    free_after_load_mib: float | None
    free_after_load_basis: str | None


@dataclass(frozen=True)
class Model:
    """The target model as the server printed it."""

    path: str | None
    architecture: str | None
    name: str | None
    file_type: str | None
    parameters: int | None
    size_mib: float | None
    bits_per_weight: float | None
    n_ctx_train: int | None
    n_layer: int | None
    n_embd: int | None
    n_head: int | list[int] | None
    n_head_kv: int | list[int] | None
    n_embd_head_k: int | None
    n_embd_head_v: int | None
    n_swa: int | None
    n_ff: int | list[int] | None
    n_vocab: int | None
    n_expert: int | None
    n_expert_used: int | None
    expert_used_percent: float | None
    rope_scaling: str | None
    rope_scaling_factor: float | None
    rope_freq_base: float | None
    n_ctx_orig: int | None


@dataclass(frozen=True)
class Context:
    """The context in use and how the slots share it.

    `n_outputs_max` is how many tokens of a batch may have logits or embeddings; `spec_types` names the ways to draft
    tokens, as `--spec-type` does.
    """

    n_ctx: int | None
    n_ctx_seq: int | None
    n_slots: int | None
    n_ctx_slot: int | None
    kv_unified: bool | None
    capped: bool | None
    n_batch: int | None
    n_ubatch: int | None
    flash_attn: str | None
    n_outputs_max: int | None
    spec_types: list[str]


@dataclass(frozen=True)
class KVPart:
    """One cache: `cells` per stream, `layers` of this cache, `mib` over all streams."""

    kind: str
    cells: int | None
    layers: int | None
    streams: int | None
    mib: float | None
    k_mib: float | None
    v_mib: float | None


@dataclass(frozen=True)
class KVCache:
    """All caches of the target model; `total_mib` excludes recurrent state."""

    type_k: str | None
    type_v: str | None
    total_mib: float | None
    per_slot_mib: float | None
    parts: list[KVPart]


@dataclass(frozen=True)
class Offload:
    """Layers that were asked onto the GPU, of all layers with the output layer."""

    layers: int | None
    of: int | None


@dataclass(frozen=True)
class Buffer:
    """One resident buffer; `buffer` is the name as printed, `line` where it was printed."""

    kind: str
    buffer: str
    device: str
    role: str
    part: str | None
    mib: float
    line: int


@dataclass(frozen=True)
class Capacity:
    """What still fits on the device that fills first."""

    device: str | None
    margin_mib: float
    headroom_mib: float | None
    additional_slots: int | None
    additional_ctx_tokens: int | None
    additional_conversations: int | None
    binding: str | None
    basis: str


@dataclass(frozen=True)
class FullReprocessing:
    """A prompt that was computed again from its first token, and the server's reason."""

    line: int
    reason: str


@dataclass(frozen=True)
class Requests:
    """What the server did after its start."""

    count: int
    prompt_tokens_computed: int | None
    prompt_tokens_reused: int | None
    prompt_tokens_per_second: float | None
    generated_tokens: int | None
    tokens_per_second: float | None
    full_reprocessings: list[FullReprocessing]
    truncated: int
    context_exceeded: int
    max_slot_tokens: int | None


@dataclass(frozen=True)
class Finding:
    """Something the reader should know or change; `code` is documented in docs/findings.md."""

    code: str
    severity: str
    message: str
    line: int | None


@dataclass(frozen=True)
class Prediction:
    """One size by the model's file and by the log; low and high are the same where the prediction is exact.

    Attributes:
        quantity: `weights`, `kv`, `recurrent`, `output` or `compute`, over all devices.
        predicted_mib: What the file predicts.
        low_mib: The least that agrees with it.
        high_mib: The most that agrees with it.
        observed_mib: What the log printed, None when it did not.
        agrees: None when there is nothing to compare with.
    """

    quantity: str
    predicted_mib: float
    low_mib: float
    high_mib: float
    observed_mib: float | None
    agrees: bool | None


@dataclass(frozen=True)
class Run:
    """One server start, from its first line to its last; `predictions` need the model's file, see `prediction`."""

    first_line: int
    last_line: int
    build: Build
    log_style: str
    outcome: str
    failure: Failure | None
    devices: list[Device]
    model: Model
    context: Context
    kv_cache: KVCache
    offload: Offload
    buffers: list[Buffer]
    capacity: Capacity
    requests: Requests | None
    findings: list[Finding]
    predictions: list[Prediction] | None = None


@dataclass(frozen=True)
class LogReport:
    """A log and the server starts found in it, in the order of their first lines."""

    source: Source
    runs: list[Run]
