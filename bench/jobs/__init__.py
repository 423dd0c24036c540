"""The job ledger beside its peers and beside the bare driver."""
