"""Which device holds a layer and which a tensor, by the flags of a start.

Current builds put layers from n_layer + 1 - n_gpu_layers on devices, where layer n_layer is the output and layers that
predict further tokens count as layers (llama.cpp's llama-model.cpp, build 11549; two devices as recorded).
"""

from __future__ import annotations

import re

from gguf_info.errors import GGUFError
from gguf_info.layers import layer_count
from gguf_info.model import Summary
from gguf_info.reader import Tensor
from gguf_info.settings import HOST, Settings

__all__ = ["Placement", "block_of", "device_names"]

_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_INPUT_TENSORS = ("token_embd", "token_types", "position_embd")
_OUTPUT_TENSORS = ("output", "altup_")
_PER_LAYER_EMBEDDING = "per_layer_token_embd"
# Build 8680 was recorded with this table on the device, current sources have it on the host; nothing is known between.
_PER_LAYER_EMBEDDING_ON_HOST_SINCE = 8681
_PIPELINES, _PIPELINE_COPIES = ("CUDA", "ROCm"), 4
_BLOCK = re.compile(r"blk\.(\d+)\.")


def device_names(settings: Settings) -> list[str]:
    """Names of the devices, of which there is one when none is given."""
    return list(settings.memory_mib) or ["GPU0"]


def block_of(tensor: Tensor) -> int | None:
    """The layer that a tensor's name puts it in; None for those outside layers."""
    match = _BLOCK.match(tensor.name)
    return int(match[1]) if match else None


class Placement:
    """Places layers and tensors.

    Raises:
        GGUFError: `--main-gpu` is no device.
    """

    def __init__(self, summary: Summary, settings: Settings) -> None:
        self.n_layer = layer_count(summary)
        self.memory: dict[str, float | None] = dict(settings.memory_mib) or dict.fromkeys(device_names(settings))
        self.names = list(self.memory)
        wanted = self.n_layer + 1 if settings.n_gpu_layers is None else settings.n_gpu_layers
        self._offloaded = max(0, min(wanted, self.n_layer + 1))
        self._first = self.n_layer + 1 - self._offloaded
        self._bounds = self._split(summary, settings)
        self._can_pipeline = settings.kv_offload and all(name.startswith(_PIPELINES) for name in self.names)
        experts = [(rf"blk\.{index}{_EXPERTS}", HOST) for index in range(min(settings.n_cpu_moe, self.n_layer))]
        inputs_on_host = settings.build >= _PER_LAYER_EMBEDDING_ON_HOST_SINCE
        self._inputs = (*_INPUT_TENSORS, *((_PER_LAYER_EMBEDDING,) if inputs_on_host else ()))
        self._outputs = (*_OUTPUT_TENSORS, _PER_LAYER_EMBEDDING)
        self._overrides = [(re.compile(pattern), name) for pattern, name in (*settings.override_tensor, *experts)]

    @property
    def pipeline_copies(self) -> int:
        """Copies of the inputs that devices in a pipeline keep; 1 where there is none (CUDA has it, RPC has not)."""
        holds_all = self._first == 0 and len({self.of_layer(index) for index in range(self.n_layer + 1)}) > 1
        return _PIPELINE_COPIES if holds_all and self._can_pipeline else 1

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
        block = block_of(tensor)
        if block is not None:
            return self.of_layer(block)
        if tensor.name.startswith(self._inputs):
            return HOST
        return self.of_layer(self.n_layer if tensor.name.startswith(self._outputs) else 0)

    def _split(self, summary: Summary, settings: Settings) -> list[float]:
        if settings.split_mode == "none":
            if not 0 <= settings.main_gpu < len(self.names):
                raise GGUFError(
                    summary.file.path,
                    None,
                    expected=f"--main-gpu below {len(self.names)}, the number of devices",
                    found=str(settings.main_gpu),
                    hint="give each device with --memory NAME=MiB",
                )
            return [float(place >= settings.main_gpu) for place in range(len(self.names))]
        shares = [*settings.tensor_split] or [size or 1.0 for size in self.memory.values()]
        shares = [*shares, *[0.0] * (len(self.names) - len(shares))][: len(self.names)]
        total = sum(shares) or 1.0
        return [sum(shares[: n + 1]) / total for n in range(len(shares))]
