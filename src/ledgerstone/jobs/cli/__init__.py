"""The commands of the job ledger."""
