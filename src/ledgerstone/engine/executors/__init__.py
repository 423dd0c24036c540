"""Where handlers run: threads, an event loop, child processes."""
