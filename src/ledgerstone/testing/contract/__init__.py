"""The conformance suite: every clause of the promises, to be run on every database."""
