"""The revisions of the tables of reminders."""
