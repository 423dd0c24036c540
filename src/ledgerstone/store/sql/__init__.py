"""SQL: named statements, batches of rows, and the expressions that databases spell differently."""
