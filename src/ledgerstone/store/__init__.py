"""The ground floor: databases, what differs between them, leases, pages, migrations, wake-ups."""
