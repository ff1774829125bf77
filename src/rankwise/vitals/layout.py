"""The layout of a vitals file: one page per rank, mapped by the rank and by its watchers.

The heartbeat is a single aligned double, which the CPU stores atomically; so is the start of a wait for data. `beat`
writes several fields that must be read together: their sequence number is odd while they are being written.
"""

from __future__ import annotations

import struct

MAGIC = b"rankwis1"
ASK = "ask-"  # prefix of the files with which a watcher asks all ranks of the folder for their calls or stacks
TEXT_BYTES = 64
FILE_BYTES = 4096
WAITS = "data"  # the phase of a rank that waits for data
NONE = -1  # an epoch or step that was never set

HEADER = struct.Struct(f"@8s q q q d {TEXT_BYTES}s")  # magic, pid, rank, stack signal (0: none), start, host
HEARTBEAT = struct.Struct("@d")  # monotonic seconds; the same for ADVANCE and WAITS
SEQUENCE = struct.Struct("@Q")
PROGRESS = struct.Struct(f"@d q q q {TEXT_BYTES}s")  # monotonic seconds, number of beats, epoch, step, phase

HEARTBEAT_AT = 256
ADVANCE_AT = HEARTBEAT_AT + HEARTBEAT.size  # when the heartbeat thread last saw a new collective; 0 if never
WAITS_AT = ADVANCE_AT + HEARTBEAT.size  # start of the rank's wait for data, if later than its last beat
SEQUENCE_AT = 320
PROGRESS_AT = SEQUENCE_AT + SEQUENCE.size


def cut_utf8(text: str) -> bytes:
    """Encode `text`, cut to at most `TEXT_BYTES` bytes without splitting a character."""
    return text.encode("utf-8", "replace")[:TEXT_BYTES].decode("utf-8", "ignore").encode()
