"""The schema: declarations of tables, their namespace, migrations and row-level security."""
