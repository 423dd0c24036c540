"""Connections: the pool, joined transactions, deadlines, and the translation of driver errors."""
