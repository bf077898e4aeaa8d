"""Many runs: combinations of values and seeds, the jobs that fill their folders, and what they cost."""
