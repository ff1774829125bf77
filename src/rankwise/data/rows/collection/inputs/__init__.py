"""Inputs of a collection: AnnData and MuData from files, stores and memory."""
