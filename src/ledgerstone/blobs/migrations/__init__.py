"""The revisions of the room of files."""
