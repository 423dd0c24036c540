"""Databases: connections, transactions, SQL, dialects, schema, leases and wake-ups."""
