"""Inspects stores of rows: content, reading costs, integrity."""
