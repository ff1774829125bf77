"""Tools around a run: check that a script trains the same at any number of ranks."""

from rankwise.diagnose.comparison import Finding, Verdict
from rankwise.diagnose.verify import verify_script
from rankwise.diagnose.verify_recorder import note

__all__ = ["Finding", "Verdict", "note", "verify_script"]
