"""MySQL and MariaDB."""
