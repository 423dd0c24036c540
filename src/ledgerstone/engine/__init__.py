"""Claim, run, settle: the one pump that moves all work, and the loops that keep it going."""
