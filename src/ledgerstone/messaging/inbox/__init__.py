"""The inbox: messages are received, and handled once for each consumer."""
