"""Around a run: is a script the same training at any number of ranks?"""

from rankwise.diagnose.comparing import Finding, Verdict
from rankwise.diagnose.recording import note
from rankwise.diagnose.verify import verify_script

__all__ = ["Finding", "Verdict", "note", "verify_script"]
