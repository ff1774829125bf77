"""``python -m rankwise.diagnose.profile script.py``: run a script and record it for profile and scaling."""

from rankwise.diagnose.profile.recorder import main

main()
