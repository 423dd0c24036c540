"""Brokers: transports that publish to them, and subscriptions that receive from them."""
