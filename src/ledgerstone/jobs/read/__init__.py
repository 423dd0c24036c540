"""What people see of jobs: facts, and what is wrong with them."""
