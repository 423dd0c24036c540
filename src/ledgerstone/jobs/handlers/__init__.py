"""Handlers: the functions that run jobs, and the job as they see it from inside."""
