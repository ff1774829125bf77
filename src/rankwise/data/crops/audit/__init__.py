"""The cost of reading crops from a collection: predicted from metadata, and measured."""

from __future__ import annotations

from rankwise.data.crops.audit.costs import CropCost
from rankwise.data.crops.audit.display import audit_facts, bench_facts, show_audit, show_bench
from rankwise.data.crops.audit.judgement import AuditOptions, AuditReport, GroupAudit, audit
from rankwise.data.crops.audit.measurement import BenchReport, GroupBench, keep_rates, measure
from rankwise.data.crops.audit.sizes import Rates, load_rates

__all__ = [
    "AuditOptions",
    "AuditReport",
    "BenchReport",
    "CropCost",
    "GroupAudit",
    "GroupBench",
    "Rates",
    "audit",
    "audit_facts",
    "bench_facts",
    "keep_rates",
    "load_rates",
    "measure",
    "show_audit",
    "show_bench",
]
