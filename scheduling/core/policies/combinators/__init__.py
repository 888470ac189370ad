"""Policy rules around policies: each applies the inner one's decisions, changed by one rule.

The state of a rule is the inner policy's, so that a virtual cluster may add or remove one without
losing its policy's state.
"""
