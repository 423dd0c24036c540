"""Webhooks: whom one may post to, how, and signed by whom."""
