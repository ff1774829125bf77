"""Vitals of a rank: heartbeat, step and phase in shared memory, and its stacks on request. No torch, no NumPy."""

from rankwise.vitals.collectives import record_calls
from rankwise.vitals.folders import has_failed, make_folder, mark_failed, remove_folder, sweep_folders
from rankwise.vitals.reader import Vital, read, request_calls, request_stacks
from rankwise.vitals.recorder import beat, beat_step, start, stop, wait

__all__ = [
    "Vital",
    "beat",
    "beat_step",
    "has_failed",
    "make_folder",
    "mark_failed",
    "read",
    "record_calls",
    "remove_folder",
    "request_calls",
    "request_stacks",
    "start",
    "stop",
    "sweep_folders",
    "wait",
]
