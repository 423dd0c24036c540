"""AMQP 0-9-1: the connection, the frames, messages on the wire, and the topology."""
