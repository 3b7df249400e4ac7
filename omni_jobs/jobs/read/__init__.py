"""What is read of jobs: views, lists, counts, waits."""
