"""What people see of protocols."""
