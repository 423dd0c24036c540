"""The inbox: receives messages, and handles each once per consumer."""
