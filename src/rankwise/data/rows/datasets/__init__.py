"""AnnData on disk and in memory, as training sees them: matrices by row, columns with one value per row."""
