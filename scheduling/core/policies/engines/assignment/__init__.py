"""At most one choice per job under a few capacities, by prices and a small exact search."""

from scheduling.core.policies.engines.assignment.solve import (
    AssignmentSolution,
    NoSolutionError,
    assign,
    solve_whole,
)

__all__ = ["AssignmentSolution", "NoSolutionError", "assign", "solve_whole"]
