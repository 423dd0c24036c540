"""Those that are measured: ours, the bare driver, and the peers."""
