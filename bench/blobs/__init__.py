"""Files in slices, beside the bare driver."""
