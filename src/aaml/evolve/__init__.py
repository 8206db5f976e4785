"""The search for formulas: genetic programming over features, judged by compiled episodes."""
