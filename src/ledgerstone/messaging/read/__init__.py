"""What people see of messages: facts, and what is wrong with them."""
