"""``python -m rankwise.diagnose script.py``: run a script and record it for `rankwise verify`."""

from rankwise.diagnose.verify_recorder import main

main()
