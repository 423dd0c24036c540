"""The three kinds of database a ledger is kept on."""
