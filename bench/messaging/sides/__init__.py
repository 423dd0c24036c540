"""Who carries messages to the broker, and who takes them from it."""
