"""What every command stands on: the call and its options, the ledger it opens, what it shows."""
