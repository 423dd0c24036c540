"""The supported databases."""
