"""Messages from a database to a broker and back, beside the bare client and a peer."""
