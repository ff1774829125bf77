"""``python -m rankwise.diagnose.profile script.py``: a script, recorded for profile and scaling."""

from rankwise.diagnose.profile.recorder import main

main()
