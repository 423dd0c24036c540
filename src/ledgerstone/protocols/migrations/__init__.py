"""The revisions of the tables of protocols."""
