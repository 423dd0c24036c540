"""Subscriptions: each receives messages from one kind of broker."""
