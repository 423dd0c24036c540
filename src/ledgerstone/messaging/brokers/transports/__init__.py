"""Transports: each carries messages to one kind of destination."""
