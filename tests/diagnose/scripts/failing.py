"""A script that fails before its first step."""

raise SystemExit("no data here")
