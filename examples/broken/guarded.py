"""Run one of these scripts with one line more, after its optimizer: the guard.

rankwise run --nproc 2 examples/broken/guarded.py forward_past_the_wrap
"""

import re
import sys
from pathlib import Path

LINE = "guard = rankwise.guarded(model, optimizer=optimizer{})"

script = Path(__file__).with_name(f"{sys.argv[1]}.py")
line = LINE.format(", loader=loader" if sys.argv[2:] == ["loader"] else "")
text, num_found = re.subn(
    r"^(optimizer = .*)$", rf"\1; import rankwise; {line}", script.read_text(), flags=re.MULTILINE
)
if num_found != 1:
    sys.exit(f"{script} has {num_found} lines that begin with 'optimizer =', wanted one")
exec(compile(text, str(script), "exec"), {"__name__": "__main__"})  # as it would run alone
