"""Webhooks: the allowed addresses, the requests, and their signatures."""
