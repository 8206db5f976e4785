"""The formula to begin with: least-variance. A search changes what stands between the two marks.

Features: docs/features.md. Operators: + - * / min max abs square sqrt log exp, < <= > >=, and or not,
A if CONDITION else B.
"""

# EVOLVE-BLOCK-START
FORMULA = """
-(pair.cpu_growth_scaled + pair.memory_growth_scaled)
"""
# EVOLVE-BLOCK-END
