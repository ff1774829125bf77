"""An audit as plain values for JSON."""

from __future__ import annotations

from dataclasses import asdict

from rankwise.data.contract import JSON
from rankwise.data.crops.audit.auditing import AuditReport, GroupAudit
from rankwise.data.crops.audit.sizes import num_files

__all__ = ["audit_facts"]


def audit_facts(report: AuditReport) -> dict[str, JSON]:
    """Return everything that an audit says."""
    return {
        "crop": list(report.options.crop),
        "channels": report.options.channels,
        "dtype": report.options.dtype.name if report.options.dtype else "native",
        "batch": report.options.batch,
        "aligned": report.options.aligned,
        "threads": report.threads,
        "rates": report.rates.origin,
        "groups": [_group(group) for group in report.groups],
        "skipped": list(report.skipped),
    }


def _group(group: GroupAudit) -> dict[str, JSON]:
    meta = group.fittings[0].meta
    return {
        "codec": group.codec,
        "fast": meta.codec.kind != "zarr",
        "dtype": meta.dtype.name,
        "chunks": list(meta.chunks),
        "shards": list(meta.files) if meta.sharded else None,
        "chunk_bytes": meta.chunk_bytes,
        "num_arrays": len(group.fittings),
        "num_files": group.num_files,
        "batch_bytes": group.batch_bytes,
        "cost": {
            **asdict(group.cost),
            "decode_waste": group.cost.decode_waste,
            "read_amplification": group.cost.read_amplification,
        },
        "crops_per_s_estimate": group.crops_per_s,
        "sizes": None if group.sizes is None else asdict(group.sizes),
        "sizes_from": group.sizes_from,
        "better_layout": asdict(group.layout),
        "advice": list(group.advice),
        "warnings": list(group.warnings),
        "arrays": [
            {
                "place": fitting.meta.place,
                "level": fitting.level,
                "shape": list(fitting.meta.shape),
                "crop": list(fitting.crop),
                "num_files": num_files(fitting.meta),
            }
            for fitting in group.fittings
        ],
    }
