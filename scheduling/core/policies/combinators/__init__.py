"""Policy rules around policies: each changes the decisions of the inner policy by one rule.

The state of a rule is that of the inner policy, so that a virtual cluster may add or remove a rule
without losing its policy's state.
"""
