"""The watchers: how a process learns of the commits of other processes, by database."""
