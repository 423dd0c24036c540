"""Events of a protocol, beside the bare driver and a library for event sourcing."""
