"""The schema: how tables are declared, where they lie, and how they are brought up to date."""
