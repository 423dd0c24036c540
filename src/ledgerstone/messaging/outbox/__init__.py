"""The outbox: messages are published in a transaction, one row for each destination."""
