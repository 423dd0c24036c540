"""Failed messages: kept with their reason, shown, retried and removed."""
