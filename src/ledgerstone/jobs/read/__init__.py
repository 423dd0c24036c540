"""Read models of jobs: facts for `status`, checks for `doctor`, lists."""
