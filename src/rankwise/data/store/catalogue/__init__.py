"""Catalogues: the contents of many stores in one file."""
