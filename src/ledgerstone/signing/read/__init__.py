"""What people see of signing: facts, and what is wrong with them."""
