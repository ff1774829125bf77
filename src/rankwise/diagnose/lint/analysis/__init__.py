"""What a file says: its calls, names, branches and launch lines, as tables that rules query."""
