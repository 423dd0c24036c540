"""Failed messages: stored with their reason, listed, retried and removed."""
