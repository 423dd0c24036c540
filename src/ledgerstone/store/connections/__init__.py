"""Connections: lent by a pool, joined from the caller, watched by deadlines, and their errors."""
