"""The parts that all commands share: a call and its options, its ledger, and its output."""
