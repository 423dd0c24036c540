"""PostgreSQL, and what makes it fast: arrays, journals in one statement, the pipeline."""
