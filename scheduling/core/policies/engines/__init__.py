"""The shared engines of the policies: sort, marginal greedy, linear programs, time shares."""
