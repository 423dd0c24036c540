"""PostgreSQL: arrays for batches, journals as CTEs, and the pipeline."""
