"""The commands of protocols."""
