"""What the store of signing costs beside the bare C calls, and how it grows with threads."""
