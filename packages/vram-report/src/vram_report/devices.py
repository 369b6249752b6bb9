"""Who owns a buffer, and what a device holds.

The rule: a buffer belongs to the device that its printed name names; pinned and mapped host buffers belong to the
host (`CPU`); a split buffer belongs to no single device, so it is kept apart and its backend's devices have no known
sum. Sizes are MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vram_report.document import Buffer, Device
from vram_report.runs import BreakdownTable, DeviceFacts, RunFacts

__all__ = ["build_devices", "device_kind", "device_order", "merged_devices", "owner"]

HOST_NAME = re.compile(r"^(?:CPU|AMX|BLAS|Host$)|_Host$")
SUFFIX = re.compile(r"_(?:Mapped|Private)$")
RPC_BUFFER = re.compile(r"^RPC\d*\[(?P<endpoint>[^\]]+)\]$")
SPREAD = re.compile(r"^Meta\(|_Split$")
KINDS: tuple[tuple[str, str], ...] = (
    (r"^CPU$", "cpu"),
    (r"^RPC", "rpc"),
    (r"^(?:BLAS|AMX|CANN|HTP|OPENVINO)", "accel"),
    (r"^(?:CUDA|ROCm|MUSA|Vulkan|SYCL|Metal|MTL|OpenCL|GPUOpenCL|WebGPU|Meta|VRAM)", "gpu"),
)


def owner(buffer: str, devices: Mapping[str, DeviceFacts]) -> str:
    """The device that a printed buffer name belongs to, `CPU` for every kind of host memory."""
    if HOST_NAME.search(buffer):
        return "CPU"
    match = RPC_BUFFER.match(buffer)
    if match:
        named = [name for name, facts in devices.items() if facts.desc == match["endpoint"] and name.startswith("RPC")]
        return named[0] if named else buffer
    name = SUFFIX.sub("", buffer)
    if name in devices:
        return name
    return next((known for known in (f"{name}0", f"GPU{name}") if known in devices), name)


def device_kind(name: str, uma: bool = False) -> str:
    """`gpu`, `igpu`, `accel`, `cpu`, `rpc` or `unknown` from a device's name."""
    kind = next((kind for pattern, kind in KINDS if re.search(pattern, name)), "unknown")
    return "igpu" if kind == "gpu" and uma else kind


def device_order(name: str) -> tuple[int, str, int]:
    """Sort key: devices by name and number (CUDA10 after CUDA9), the host last."""
    match = re.match(r"(\D*)(\d*)", name)
    stem, digits = match.groups() if match else (name, "")
    return (name == "CPU", stem, int(digits or 0))


def merged_devices(run: RunFacts, buffers: Iterable[str]) -> dict[str, DeviceFacts]:
    """The run's devices with Metal's unnamed start-up lines attached to the name its buffers use."""
    devices = dict(run.devices)
    if run.metal:
        names = [*devices, *buffers]
        name = next((SUFFIX.sub("", n) for n in names if re.match(r"MTL\d", n)), None)
        printed = run.metal.get("name", "")
        name = name or (printed if re.match(r"MTL\d", printed) else "Metal")
        facts = devices.setdefault(name, DeviceFacts(name))
        facts.desc = facts.desc or run.metal.get("desc") or (printed if printed != name else None)
        if facts.total is None and "mb" in run.metal:
            facts.total = round(float(run.metal["mb"]) * 1e6 / 2**20, 2)
    return devices


def build_devices(run: RunFacts, buffers: list[Buffer]) -> list[Device]:
    """One row a device: what it had, what it holds, what is left, and how each figure is known.

    Args:
        run: The run's facts.
        buffers: Its resident buffers.
    """
    facts = merged_devices(run, (buffer.buffer for buffer in buffers))
    table = _table(run, bool(buffers))
    rows = _table_rows(table)
    projections = _table_rows(next((t for t in run.tables if not t.measured), None))
    names = dict.fromkeys([*facts, *(buffer.device for buffer in buffers), *rows])
    spread = {SPREAD_STEM.sub("", b.buffer) for b in buffers if SPREAD.search(b.buffer)}
    return [
        _device(
            name,
            facts.get(name),
            [b for b in buffers if b.device == name],
            rows.get(name),
            table,
            spread,
            projections.get(name, {}).get("free"),
        )
        for name in sorted(names, key=device_order)
    ]


SPREAD_STEM = re.compile(r"_Split$|\(.*$")


def _table(run: RunFacts, has_buffers: bool) -> BreakdownTable | None:
    measured = [table for table in run.tables if table.measured and (table.devices or table.hosts)]
    if measured:
        return measured[-1]
    projected = [table for table in run.tables if table.devices or table.hosts]
    return projected[-1] if projected and not has_buffers else (projected[0] if projected else None)


def _table_rows(table: BreakdownTable | None) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    if table is None:
        return rows
    for name, fields in table.devices.items():
        rows[name] = {key: float(value) for key, value in fields.items() if value and key not in ("name", "desc")}
    for fields in table.hosts.values():
        host = rows.setdefault("CPU", {"self": 0.0, "model": 0.0, "context": 0.0, "compute": 0.0})
        for key in ("self", "model", "context", "compute"):
            host[key] += float(fields[key] or 0)
        if fields.get("total"):
            host["total"] = float(fields["total"] or 0)
    return rows


def _sum(buffers: list[Buffer], kind: str) -> float | None:
    found = [buffer.mib for buffer in buffers if buffer.kind == kind]
    return round(sum(found), 2) if found else None


def _device(
    name: str,
    facts: DeviceFacts | None,
    buffers: list[Buffer],
    row: dict[str, float] | None,
    table: BreakdownTable | None,
    spread: set[str],
    projected_free: float | None,
) -> Device:
    row = row or {}
    parts = {kind: _sum(buffers, kind) for kind in ("weights", "kv", "recurrent", "compute", "output", "other")}
    if not buffers and row:
        parts.update(weights=row["model"], kv=row["context"], compute=row["compute"])
    shares = any(name.startswith(stem) for stem in spread if stem) and not SPREAD.search(name)
    unknowable = shares and device_kind(name) in ("gpu", "igpu")
    used, used_basis = _used(name, buffers, row, table, unknowable)
    total = facts.total if facts and facts.total is not None else row.get("total")
    free = _free_before(facts, projected_free, row if not buffers else {})
    after, after_basis = _free_after(name, free, used, used_basis, row, table)
    return Device(
        name=name,
        description=facts.desc if facts else None,
        kind=device_kind(name, facts.uma if facts else False),
        total_mib=total,
        free_mib=free,
        weights_mib=parts["weights"],
        kv_mib=parts["kv"],
        recurrent_mib=parts["recurrent"],
        compute_mib=parts["compute"],
        output_mib=parts["output"],
        other_mib=parts["other"],
        used_mib=used,
        used_basis=used_basis,
        free_after_load_mib=after,
        free_after_load_basis=after_basis,
    )


def _used(
    name: str, buffers: list[Buffer], row: dict[str, float], table: BreakdownTable | None, unknowable: bool
) -> tuple[float | None, str | None]:
    extra = any(buffer.role != "model" for buffer in buffers)
    if row and table and table.measured and name != "CPU" and not extra:
        return row["self"], "measured"
    if unknowable:
        return None, None
    if buffers:
        return round(sum(buffer.mib for buffer in buffers), 2), "summed"
    if row and table:
        return row["self"], "measured" if table.measured else "projected"
    return None, None


def _free_before(facts: DeviceFacts | None, projected_free: float | None, row_alone: dict[str, float]) -> float | None:
    printed = [facts.free_before, facts.free_info] if facts else []
    return next((free for free in (*printed, projected_free, row_alone.get("free")) if free is not None), None)


def _free_after(
    name: str,
    free: float | None,
    used: float | None,
    used_basis: str | None,
    row: dict[str, float],
    table: BreakdownTable | None,
) -> tuple[float | None, str | None]:
    if table and table.measured and row.get("free") is not None and device_kind(name) != "rpc":
        return row["free"], "measured"
    if free is None or used is None:
        return None, None
    return round(free - used, 2), "summed" if used_basis == "measured" else used_basis
