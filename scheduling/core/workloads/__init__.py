"""Workloads of simulations: traces, their readers, tables of run times, and clusters."""
