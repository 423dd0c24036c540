"""Symfony Messenger: the tables that are shared with it, and the rows that it writes and reads."""
