"""The rules, one file per family; `rankwise.diagnose.lint.catalogue` holds them all."""
