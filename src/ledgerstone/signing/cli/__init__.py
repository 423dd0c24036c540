"""`ledgerstone signing`: groups, requests, votes, signatures and the store that keeps them."""
