"""What reading crops of a collection costs: predicted from metadata, and measured."""

from __future__ import annotations

from rankwise.data.crops.audit.auditing import AuditOptions, AuditReport, GroupAudit, audit
from rankwise.data.crops.audit.calibrating import keep_rates
from rankwise.data.crops.audit.costing import CropCost
from rankwise.data.crops.audit.facts import audit_facts
from rankwise.data.crops.audit.measuring import BenchOptions, BenchReport, GroupBench, measure
from rankwise.data.crops.audit.rates import Rates, load_rates
from rankwise.data.crops.audit.showing import show_audit
from rankwise.data.crops.audit.showing_bench import bench_facts, show_bench

__all__ = [
    "AuditOptions",
    "AuditReport",
    "BenchOptions",
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
