"""Whether a transaction waits for a lock of another one, asked of the server."""

from __future__ import annotations

WAITING = {
    "postgres": "SELECT COUNT(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx "
    "JOIN information_schema.processlist ON id = trx_mysql_thread_id "
    "WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()",
}
"""How many transactions of this database wait for a lock."""
REFRESHED_SECONDS = 0.3
"""MariaDB shows the same transactions again to those who look more often than every 0.1 s."""
