"""How each database tells another process that there is something to do."""
