"""Schedules: jobs that are enqueued at the moments of a cron expression."""
