"""The commands of messaging."""
