"""Other queues, set up as their users would, for the benchmarks to run beside ours."""
