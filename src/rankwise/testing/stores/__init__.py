"""Stores, arrays and rows for tests."""
