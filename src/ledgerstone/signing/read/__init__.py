"""Read models of signing: facts, findings, and pages of requests."""
