"""What people see of files."""
