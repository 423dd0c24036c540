"""Shipped for tests: the conformance suite, fixtures, faults, private servers."""
