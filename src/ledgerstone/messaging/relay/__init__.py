"""Relays: send messages from the outbox to their destinations, in order or competing."""
