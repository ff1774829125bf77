"""``python -m rankwise.diagnose script.py``: a script, recorded for `rankwise verify`."""

from rankwise.diagnose.verify_recorder import main

main()
